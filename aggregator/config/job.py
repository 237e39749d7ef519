"""A repairer's section ``job``: active tests as a Kubernetes Job on the quarantined node."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import InitErrorDetails

from aggregator.configfile.section import Section, Strings
from aggregator.configfile.values import LabelKey, Namespace, refuse, shaped, show
from aggregator.configfile.yaml_source import Key
from aggregator.quarantine.decide.profiles import Profile

#: The container whose exit code is the verdict.
CONTAINER = "test"
_OWN_PREFIXES = ("sickbay.dev/", "batch.kubernetes.io/")
_HOST = r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(:[0-9]+)?"
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
#: A reference as container runtimes parse it (distribution/reference, reference.go).
_IMAGE = shaped(
    rf"({_HOST}/)?{_PART}(/{_PART})*(:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(@sha256:[0-9a-f]{{64}})?",
    'an image, "HOST/NAME:TAG" or "HOST/NAME@sha256:...", in small letters except the tag',
)
_NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_NAME_EXPECTED = "small letters, digits, hyphens and dots"


def _gpus(value: Any) -> Any:
    if value != "all" and (type(value) is not int or not 0 <= value <= 1024):
        raise refuse(show(value), 'a number of GPUs from 0 to 1024, or "all"')
    return value


def _free_keys(value: Mapping[str, str]) -> Mapping[str, str]:
    for name in value:
        if name.startswith(_OWN_PREFIXES):
            raise refuse(f"{show(name)} is sickbay's or Kubernetes' own", "another key")
    return value


_FREE = AfterValidator(_free_keys)


def _with_key(value: Any) -> Any:
    if isinstance(value, dict) and not value.get("key"):
        raise refuse("tolerates every taint, also those of other parties", "key")
    return value


def _without(*own: str) -> BeforeValidator:
    """Refuses fields that sickbay sets itself: they pin the test to its node, end it, or make its
    end readable.
    """
    error = refuse("is set by sickbay, and can't be changed here", "none")

    def check(value: Any) -> Any:
        found = [name for name in own if name in value] if isinstance(value, dict) else []
        if found:
            errors = [InitErrorDetails(type=error, loc=(one,), input=value[one]) for one in found]
            raise ValidationError.from_exception_data("own fields", errors)
        return value

    return BeforeValidator(check)


_Toleration = Annotated[Mapping[str, Any], Field(strict=False), BeforeValidator(_with_key)]
_Container = Annotated[
    Mapping[str, Any],
    Field(strict=False),
    _without(
        *("args", "command", "image", "livenessProbe", "name", "readinessProbe", "restartPolicy"),
        *("restartPolicyRules", "startupProbe", "terminationMessagePath"),
        "terminationMessagePolicy",
    ),
]


class JobPodMetadata(Section):
    """Of the pod."""

    labels: Annotated[Mapping[str, str], Field(strict=False), _FREE] = {}
    """Further labels."""
    annotations: Annotated[Mapping[str, str], Field(strict=False), _FREE] = {}
    """Further annotations."""


class JobPodSpec(Section):
    """Of the pod's spec these fields, and others of Kubernetes, which are merged in as they are."""

    model_config = ConfigDict(extra="allow")

    tolerations: Annotated[tuple[_Toleration, ...], Field(strict=False)] = ()
    """Further ones, each with its key. Other fields of a pod's spec, as volumes, are merged in too.
    """
    containers: Annotated[tuple[_Container, ...], Field(strict=False, max_length=1)] = ()
    """Further fields of the test's container."""


class JobPodTemplate(Section):
    """A pod template that is merged in."""

    metadata: JobPodMetadata = JobPodMetadata()
    spec: Annotated[
        JobPodSpec,
        _without(
            *("activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "nodeName"),
            *("nodeSelector", "priorityClassName", "restartPolicy", "serviceAccountName"),
            *("serviceAccount", "terminationGracePeriodSeconds", "topologySpreadConstraints"),
        ),
    ] = JobPodSpec()


class JobProfile(Section):
    """The programs of a test profile."""

    command: Annotated[Strings, Field(min_length=1)]
    """No shell. Exit code 0: passed; 1: failed; all others: no verdict about the node."""


class JobSection(Section):
    """Active tests by a Job, pinned to the quarantined node."""

    namespace: Annotated[Namespace, Field(min_length=1)]
    """Of the Jobs of active tests. Nobody else should be able to create Jobs or pods there.
    docs/active-tests.md#by-a-job-in-kubernetes.
    """
    image: Annotated[str, _IMAGE]
    """With a digest, so that it is the image that was reviewed."""
    profiles: Annotated[Mapping[Profile, JobProfile], Field(min_length=1, strict=False)]
    """By name, each with its ``command``: an argument list, no shell."""
    gpus: Annotated[
        Annotated[int, Field(ge=0, le=1024)] | Literal["all"], BeforeValidator(_gpus)
    ] = "all"
    """This many are requested; ``all``: as many as the Node's capacity has; ``0``: none, with
    DRA."""
    gpu_resource: Annotated[LabelKey, Field(min_length=1)] = "nvidia.com/gpu"
    """The resource that is requested."""
    privileged: bool = False
    """Whether the container of the pod is privileged."""
    service_account: Annotated[str, shaped(_NAME, _NAME_EXPECTED)] = "default"
    """Of the pod. Its token is not mounted."""
    priority_class: Annotated[str, shaped(rf"({_NAME})?", _NAME_EXPECTED)] = ""
    """Of the pod; empty: the cluster's default."""
    template: JobPodTemplate = JobPodTemplate()
    """A pod template that is merged in: metadata (labels, annotations), and spec with volumes,
    further tolerations and one container.
    """


def job_errors(section: JobSection, key: Key, own: str = "") -> Iterator[tuple[Key, str]]:
    """The errors of the section: the key, and the value to write instead.

    ``own``: the namespace of sickbay itself.
    """
    whose = {own: "sickbay's own, whose secrets such a Job could mount"}
    taken = whose.get(section.namespace, "Kubernetes' own")
    if section.namespace in whose or section.namespace.startswith("kube-"):
        text = f'"{section.namespace}" is {taken}; expected a namespace for tests alone'
        yield (*key, "namespace"), text
