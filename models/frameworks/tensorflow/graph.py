"""TensorFlow's graph optimizers (Grappler), which rewrite a function's graph before it runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from models.frameworks import GRAPH_OPTIMIZERS, OTHER_GRAPH_OPTIMIZERS

# Kind of node -> whole names of its operators; all others compute element by element.
KINDS = {
    "nothing": r"""NoOp|Identity(N)?|Const|Placeholder\w*|_Arg|_Retval|StopGradient|PreventGradient
        |Snapshot|ControlTrigger""",
    "control": r"""_?(Ref)?(Switch|Merge|Enter|Exit|NextIteration|LoopCond)
        |(Stateless)?(While|If|Case)|(Stateful)?PartitionedCall|_?(Host)?(Send|Recv)""",
    "shapes": r"""(Unique)?Shape(N)?|Size|Rank|Reshape|ExpandDims|Squeeze|(Conjugate)?Transpose
        |Concat\w*|Split\w*|Slice|StridedSlice\w*|Pack|Unpack|Tile|Pad\w*|MirrorPad\w*|Gather\w*
        |ResourceGather\w*|Range|Fill|ZerosLike|OnesLike|Broadcast\w*|Cast|Reverse\w*|TensorArray\w*
        |TensorList\w*|EmptyTensorList|InvertPermutation|ConcatOffset|Where""",
    "variables": r"""VarHandleOp|VarIsInitializedOp|ReadVariableOp|Assign\w*
        |Resource(Apply|Sparse|Scatter)\w*|_\w*Resource\w*""",
    "products": r"_?\w*(MatMul|Conv2D|Conv3D|Conv2d|Einsum|BlockLSTM|CudnnRNN|CTCLoss)\w*",
}
REST = "elements"


def switch(off: Collection[str]) -> None:
    """Switch optimizers off, of (OTHER_)GRAPH_OPTIMIZERS, for functions that are traced later."""
    import tensorflow as tf

    names = {*GRAPH_OPTIMIZERS, *OTHER_GRAPH_OPTIMIZERS} & set(off) - {"all", "pruning"}
    options = dict.fromkeys(names, False)
    options |= {"disable_model_pruning": True} if "pruning" in off else {}
    options |= {"disable_meta_optimizer": True} if "all" in off else {}
    if options:  # TensorFlow's defaults stay for others
        tf.config.optimizer.set_experimental_options(options)


def nodes(work: Callable[[], object]) -> Mapping[str, tuple[int, int]]:
    """Return nodes by kind before and after the optimizers, of the largest new graph in the work.

    Functions that it calls are counted once.
    """
    from tensorflow.python.eager import context

    eager = context.context()
    eager.enable_graph_collection()
    try:
        work()
        graphs = eager.export_run_metadata().function_graphs
    finally:
        eager.disable_graph_collection()
    before, after = Counter[str](), Counter[str]()
    for graph in graphs:
        counts = Counter(map(kind, _operators(graph.pre_optimization_graph)))
        if counts.total() > before.total():
            before = counts
            after = Counter(map(kind, _operators(graph.post_optimization_graph)))
    kinds = [name for name in (*KINDS, REST) if before[name] or after[name]]
    return {name: (before[name], after[name]) for name in kinds}


def kind(operator: str) -> str:
    """Return a name of KINDS, or REST."""
    for name, pattern in KINDS.items():
        if re.fullmatch(pattern, operator, re.VERBOSE):
            return name
    return REST


def _operators(graph: Any) -> Iterator[str]:
    """Yield the operator of each node, and of those of called functions, each function once."""
    library = {function.signature.name: function.node_def for function in graph.library.function}
    waiting = [graph.node]
    while waiting:
        for node in waiting.pop():
            yield node.op
            names = [node.op]
            for value in node.attr.values():
                names += [value.func.name] if value.HasField("func") else []
                names += [function.name for function in value.list.func]
            waiting += [library.pop(name) for name in names if name in library]
