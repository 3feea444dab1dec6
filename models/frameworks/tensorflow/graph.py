"""TensorFlow's graph optimizers (Grappler), which rewrite the graph of a function before it runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from models.frameworks import GRAPH_OPTIMIZERS, OTHER_GRAPH_OPTIMIZERS

# Kind of node -> the operators that it holds, whole names; what none of them holds computes element by element.
KINDS = {
    "nothing": r"NoOp|Identity(N)?|Const|Placeholder\w*|_Arg|_Retval|StopGradient|PreventGradient|Snapshot|ControlTrigger",
    "control": r"_?(Ref)?(Switch|Merge|Enter|Exit|NextIteration|LoopCond)|(Stateless)?(While|If|Case)|(Stateful)?PartitionedCall"
    r"|_?(Host)?(Send|Recv)",
    "shapes": r"(Unique)?Shape(N)?|Size|Rank|Reshape|ExpandDims|Squeeze|(Conjugate)?Transpose|Concat\w*|Split\w*|Slice"
    r"|StridedSlice\w*|Pack|Unpack|Tile|Pad\w*|MirrorPad\w*|Gather\w*|ResourceGather\w*|Range|Fill|ZerosLike|OnesLike|Broadcast\w*|Cast|Reverse\w*"
    r"|TensorArray\w*|TensorList\w*|EmptyTensorList|InvertPermutation|ConcatOffset|Where",
    "variables": r"VarHandleOp|VarIsInitializedOp|ReadVariableOp|Assign\w*|Resource(Apply|Sparse|Scatter)\w*|_\w*Resource\w*",
    "products": r"_?\w*(MatMul|Conv2D|Conv3D|Conv2d|Einsum|BlockLSTM|CudnnRNN|CTCLoss)\w*",
}
REST = "elements"


def switch(off: Collection[str]) -> None:
    """For functions that are traced from now on. off: of (OTHER_)GRAPH_OPTIMIZERS; `all` switches every one off there is."""
    import tensorflow as tf

    names = {*GRAPH_OPTIMIZERS, *OTHER_GRAPH_OPTIMIZERS} & set(off) - {"all", "pruning"}
    options = dict.fromkeys(names, False)
    options |= {"disable_model_pruning": True} if "pruning" in off else {}
    options |= {"disable_meta_optimizer": True} if "all" in off else {}
    if options:  # what is not named stays as TensorFlow has it
        tf.config.optimizer.set_experimental_options(options)


def nodes(work: Callable[[], object]) -> Mapping[str, tuple[int, int]]:
    """Kind -> nodes before and after the optimizers, of the largest graph that is met for the first time in the work.

    With the functions that it calls, each counted once.
    """
    from tensorflow.python.eager import context

    here = context.context()
    here.enable_graph_collection()
    try:
        work()
        graphs = here.export_run_metadata().function_graphs
    finally:
        here.disable_graph_collection()
    counted = [
        (_counted(one.pre_optimization_graph), _counted(one.post_optimization_graph))
        for one in graphs
    ]
    before, after = max(counted, key=lambda pair: pair[0].total(), default=(Counter(), Counter()))
    return {
        kind: (before[kind], after[kind]) for kind in (*KINDS, REST) if before[kind] or after[kind]
    }


def _counted(graph: Any) -> Counter[str]:
    return Counter(map(kind, _operators(graph)))


def kind(operator: str) -> str:
    """One of KINDS, or REST."""
    return next((name for name, pattern in KINDS.items() if re.fullmatch(pattern, operator)), REST)


def _operators(graph: Any) -> Iterator[str]:
    """Of every node, and of those of the functions that are called, each function once."""
    library = {one.signature.name: one.node_def for one in graph.library.function}
    waiting = [graph.node]
    while waiting:
        for node in waiting.pop():
            named = [
                node.op,
                *(one.func.name for one in node.attr.values() if one.HasField("func")),
            ]
            named += [func.name for one in node.attr.values() for func in one.list.func]
            waiting += [library.pop(name) for name in named if name in library]
            yield node.op
