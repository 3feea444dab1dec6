from models.mobilenet_v2.spec import Spec, parameters
from tests.toy_framework.networks import Network


def build(spec: Spec) -> Network:
    return Network(spec.shapes(), parameters(spec), output="classifier.1.bias")
