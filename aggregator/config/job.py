"""A repairer's section ``job``: active tests as a Kubernetes Job on the quarantined node."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from aggregator.configfile.section import Section, Strings
from aggregator.configfile.values import LabelKey, Namespace, kind_of, refuse, shaped, show
from aggregator.configfile.yaml_source import Key
from aggregator.quarantine.decide.profiles import PROFILE

#: The container whose exit code is the verdict.
CONTAINER = "test"
#: Fields of a pod that pin the test to its node, end it, or make its end readable: sickbay's own.
_OWN_POD = (
    *("activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "nodeName"),
    *("nodeSelector", "priorityClassName", "restartPolicy", "serviceAccountName"),
    *("serviceAccount", "terminationGracePeriodSeconds", "topologySpreadConstraints"),
)
_OWN_CONTAINER = (
    *("args", "command", "image", "livenessProbe", "name", "readinessProbe", "restartPolicy"),
    *("restartPolicyRules", "startupProbe", "terminationMessagePath", "terminationMessagePolicy"),
)
_OWN_PREFIXES = ("sickbay.dev/", "batch.kubernetes.io/")
_TEMPLATE = ("metadata", "spec")
_METADATA = ("labels", "annotations")
_HOST = r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(:[0-9]+)?"
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
#: A reference as container runtimes parse it (distribution/reference, reference.go).
_IMAGE = re.compile(
    rf"({_HOST}/)?{_PART}(/{_PART})*(:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(@sha256:[0-9a-f]{{64}})?"
)
_NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_NAME_EXPECTED = "small letters, digits, hyphens and dots"


def _image(value: Any) -> Any:
    if isinstance(value, str) and _IMAGE.fullmatch(value) is None:
        expected = '"HOST/NAME:TAG" or "HOST/NAME@sha256:...", in small letters except the tag'
        raise refuse(f"{show(value)} is no image", expected)
    return value


def _profiles(value: Any) -> Any:
    for name in value if isinstance(value, dict) else ():
        if PROFILE.fullmatch(name) is None:
            raise refuse(f"has the profile {show(name)}", "letters, digits, hyphens, 64 at most")
    return value


def _gpus(value: Any) -> Any:
    if value != "all" and (type(value) is not int or not 0 <= value <= 1024):
        raise refuse(show(value), 'a number of GPUs from 0 to 1024, or "all"')
    return value


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
    image: Annotated[str, Field(min_length=1), BeforeValidator(_image)]
    """With a digest, so that it is the image that was reviewed."""
    profiles: Annotated[
        Mapping[str, JobProfile], Field(min_length=1, strict=False), BeforeValidator(_profiles)
    ]
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
    template: Annotated[Mapping[str, Any], Field(strict=False)] = {}
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
    yield from _template_errors(section.template, (*key, "template"))


def _template_errors(template: Mapping[str, Any], key: Key) -> Iterator[tuple[Key, str]]:
    yield from _unknown(template, _TEMPLATE, key)
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    yield from _metadata_errors(metadata, (*key, "metadata"))
    if not isinstance(spec, dict):
        yield (*key, "spec"), f"{kind_of(spec)}; expected fields of a pod's spec"
        return
    yield from _own(spec, _OWN_POD, (*key, "spec"))
    yield from _toleration_errors(spec.get("tolerations") or [], (*key, "spec", "tolerations"))
    yield from _container_errors(spec.get("containers") or [], (*key, "spec", "containers"))


def _metadata_errors(metadata: Any, key: Key) -> Iterator[tuple[Key, str]]:
    if not isinstance(metadata, dict):
        yield key, f"{kind_of(metadata)}; expected {' and '.join(_METADATA)}"
        return
    yield from _unknown(metadata, _METADATA, key)
    for name in _METADATA:
        texts = metadata.get(name) or {}
        if not isinstance(texts, dict) or not all(isinstance(one, str) for one in texts.values()):
            yield (*key, name), f"{kind_of(texts)}; expected keys with texts (in quotes)"
            continue
        for one in texts:
            if str(one).startswith(_OWN_PREFIXES):
                yield (*key, name, one), "is sickbay's or Kubernetes' own; expected another key"


def _toleration_errors(tolerations: Any, key: Key) -> Iterator[tuple[Key, str]]:
    if not isinstance(tolerations, list):
        yield key, f"{kind_of(tolerations)}; expected a list"
        return
    for number, one in enumerate(tolerations):
        if not isinstance(one, dict) or not one.get("key"):
            text = "tolerates every taint, also those of other parties; expected key"
            yield (*key, number), text


def _container_errors(containers: Any, key: Key) -> Iterator[tuple[Key, str]]:
    if not isinstance(containers, list):
        yield key, f"{kind_of(containers)}; expected a list with one entry"
        return
    if len(containers) > 1:
        yield key, f"has {len(containers)} entries; expected one, that of the test"
    for number, one in enumerate(containers):
        if not isinstance(one, dict):
            yield (*key, number), f"{kind_of(one)}; expected fields of a container"
            continue
        yield from _own(one, _OWN_CONTAINER, (*key, number))


def _unknown(
    value: Mapping[str, Any], known: tuple[str, ...], key: Key
) -> Iterator[tuple[Key, str]]:
    for name in value:
        if name not in known:
            yield (*key, name), f"no known key {show(name)}; expected {' and '.join(known)}"


def _own(value: Mapping[str, Any], own: tuple[str, ...], key: Key) -> Iterator[tuple[Key, str]]:
    for name in value:
        if name in own:
            yield (*key, name), "is set by sickbay, and can't be changed here; expected none"
