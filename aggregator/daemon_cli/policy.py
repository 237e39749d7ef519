"""``sickbay-aggregator policy``: check a site's rules, show which actions would follow and why."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aggregator.daemon_cli import pools, replay
from aggregator.daemon_cli.subcommand import add_command, print_visibly, shaped_as
from aggregator.rfc3339 import span
from aggregator.runtime.command_options import add_value
from aggregator.runtime.text import counted

if TYPE_CHECKING:  # half a second that other commands need not spend
    from aggregator.config.settings import Config
    from aggregator.configfile.yaml_source import ConfigProblem, Key
    from aggregator.policy.explain import Explanation
    from aggregator.policy.rules import Rule

_OK = 0
_ODD = 1
_CODE = re.compile(r"[a-z][a-z0-9-]*(:[A-Za-z0-9._-]+)*")
_REGISTERS = ("intr_info", "error_status")
_check_name = shaped_as(r"[a-z][a-z0-9-]*", "no name; expected one such as disk-space")
_condition = shaped_as(
    r"[A-Za-z0-9][A-Za-z0-9._/-]*", "no name; expected one such as KernelDeadlock"
)
_driver = shaped_as(
    r"[0-9]{1,6}(\.[0-9]{1,6})*", "no driver's version; expected one such as 580.82.07"
)


def add_to(commands: Any) -> None:
    """Add ``policy`` and its subcommands."""
    policy = add_command(commands, "policy", "check, explain or replay rules")
    about = policy.add_subparsers(required=True, metavar="COMMAND")
    check = add_command(
        about,
        "check",
        "list every error of a file of rules",
        "Exit code: 0 no error, 1 a warning with --strict, 2 an error.",
    )
    check.add_argument("file", type=Path, metavar="FILE", help="the rules")
    check.add_argument("--strict", action="store_true", help="exit with 1 after a warning, too")
    add_value(check, "--config", "FILE", "check the pools of this configuration, too", Path)
    check.set_defaults(command=_check)

    explain = add_command(about, "explain", "print the action on a fault, and the rule behind it")
    what = explain.add_mutually_exclusive_group(required=True)
    add_value(what, "--fault", "CODE", "such as xid:79", _code)
    add_value(what, "--check", "NAME", "a check that fails", _check_name)
    add_value(
        what,
        "--condition",
        "TYPE",
        "a node condition that another program has set, such as KernelDeadlock",
        _condition,
    )
    explain.add_argument(
        "--status",
        choices=("failed", "degraded"),
        default="failed",
        help="the check's status (default: %(default)s)",
    )
    add_value(
        explain,
        "--reason",
        "WORD",
        "the reason of the check, such as lost, or of the condition",
        _condition,
        "",
    )
    explain.add_argument("--component", default="", help="such as /data or a GPU's UUID")
    add_value(explain, "--count", "N", "how often the fault was seen", _count(1_000_000), 1)
    add_value(explain, "--jobs", "N", "in how many jobs the fault was seen", _count(32), 1)
    add_value(explain, "--flaps", "N", "how often the check began to fail", _count(32), 0)
    add_value(explain, "--driver", "VERSION", "the node's driver, such as 580.82.07", _driver, "")
    explain.add_argument(
        "--detail",
        type=_detail,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a detail from the fault's line, such as verdict=gpu-reset",
    )
    add_value(explain, "--policy", "FILE", "a site's rules on top of the shipped ones", Path)
    explain.add_argument(
        "--label",
        type=pools.label_argument,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a label of the node, for rules about some nodes, and for its pool",
    )
    add_value(explain, "--config", "FILE", "name the node's pool in this configuration", Path)
    explain.add_argument("-o", "--output", choices=("text", "json"), default="text")
    explain.set_defaults(command=_explain)
    replay.add_replay(about)


def _check(options: argparse.Namespace) -> int:
    from aggregator.policy.defaults import read_policy, read_with_warnings

    shipped = {rule.name: rule for rule in read_policy().rules}
    policy, odd = read_with_warnings(options.file)
    added = [rule for rule in policy.rules if rule.name not in shipped]
    changed = [rule for rule in policy.rules if shipped.get(rule.name, rule) != rule]
    more = counted(len(changed), "shipped one")
    print(f"{options.file}: sound ({counted(len(added), 'rule')} added, {more} changed)")
    for rule in changed:
        print_visibly(f"  changed  {rule.name}: {_change(shipped[rule.name], rule)}")
    for rule in added:
        print_visibly(f"  added    {rule.name}: {rule.action}")
    found = warn(options.file, odd)
    if options.config is not None:
        from aggregator.config.settings import load

        config = load(options.config)
        found += warn_of_pools(options.config, config)
        # No warnings: a site begins with such settings, and means them.
        _report(options.config, "note", pools.caps(config, [*changed, *added], shipped))
    return _ODD if found and options.strict else _OK


def warn_of_pools(file: Path, config: "Config") -> int:
    """Report on stderr the pools that can have no effect, and return their number."""
    return _report(file, "warning", pools.odd_pools(config))


def _report(file: Path, severity: str, found: Iterable[tuple["Key", str]]) -> int:
    from aggregator.configfile.yaml_source import read

    problems = [read(file).problem(key, text) for key, text in found]
    for one in problems:
        print_visibly(f"{file}:{one.line}: {severity}: {one.key}: {one.text}", sys.stderr)
    return len(problems)


def warn(file: Path, found: Sequence["ConfigProblem"]) -> int:
    """Report on stderr the parts of a site's rules that can have no effect, and return their
    number.
    """
    for problem in found:
        key = f"{problem.key}: " if problem.key else ""
        print_visibly(f"{file}:{problem.line}: warning: {key}{problem.text}", sys.stderr)
    return len(found)


def _change(before: "Rule", after: "Rule") -> str:
    from aggregator.policy.load import KEYS

    old = {key: getattr(before, KEYS[key]) for key in KEYS}
    new = {key: getattr(after, KEYS[key]) for key in KEYS}
    other = [key for key in KEYS if key != "action" and old[key] != new[key]]
    words = [f"{before.action} becomes {after.action}"] * (before.action != after.action)
    words += [
        f"{key}: {_value(old[key])} becomes {_value(new[key])}" if key != "why" else "why"
        for key in other
    ]
    return "; ".join(words)


def _value(value: object) -> str:
    """The value as a rule's file would have it."""
    if isinstance(value, float):
        return span(value)
    if value is None:
        return "any"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} is {_value(of)}" for name, of in value.items()) or "any"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(str, value))}]" if value else "any"
    return str(value) or "none"


def _explain(options: argparse.Namespace) -> int:
    from aggregator.policy.defaults import lint_question, read_policy
    from aggregator.policy.explain import Question, explain
    from aggregator.policy.node_rules import policy_for
    from aggregator.policy.rules import CONDITION_CHECK

    question = Question(
        code=options.fault or "",
        check=CONDITION_CHECK if options.condition else options.check or "",
        status=options.status,
        reason=options.reason,
        component=options.condition or options.component,
        count=options.count,
        jobs=options.jobs,
        flaps=options.flaps,
        driver=options.driver,
        details=dict(options.detail),
    )
    policy = read_policy(options.policy)
    where = _place(options)
    answer = explain(policy_for(policy, dict(options.label)) if options.label else policy, question)
    slip = (
        lint_question(policy, question.check, question.status, question.reason)
        if question.check
        else ""
    )
    if slip:
        print(f"warning: {slip}", file=sys.stderr)
    if options.output == "json":
        print(json.dumps({**_as_json(answer), **where}, indent=2))
    else:
        print_visibly(_text(answer, where))
    return _OK


def _place(options: argparse.Namespace) -> dict[str, str]:
    """The node's pool by the given labels, and the mode; empty without a configuration."""
    if options.config is None:
        return {}
    from aggregator.config.settings import load

    known = pools.pools_of(load(options.config))
    name = known.name_of(dict(options.label))
    return {"pool": name, "mode": known.mode_of(name).value}


def _text(answer: "Explanation", where: Mapping[str, str]) -> str:
    rule = answer.rule
    lines = [answer.evidence, f"  means      {answer.meaning}"]
    if where:
        lines.append(f"  pool       {where['pool'] or 'none'}, mode {where['mode']}")
    if answer.published:
        lines.append(f"  NVIDIA     {answer.published}")
    if answer.row:
        lines.append(f"  registers  {answer.row}")
    lines += [f"  ended by   {answer.ended_by}"]
    also = "also"
    if rule is None and answer.others:
        lines.append("  action     by what the line has besides; none for any other")
        also = "either"
    elif rule is None:
        lines.append("  action     none: no rule is about it, so it is shown and never acted on")
    else:
        after = f" once it has been so for {span(rule.hold)}" if rule.hold else ""
        lines.append(f"  action     {rule.action}{after}, by rule {rule.name}")
        if rule.scope == "gpu":
            lines.append("  scope      gpu: only the pods that use the faulty GPU are evicted")
        if rule.nodes is not None:
            lines.append(f"  nodes      {_nodes_of(rule)}")
        lines.append(f"  why        {rule.why}")
        if rule.action != "observe":
            lines += [f"  released   {line}" for line in _releases(rule)]
            lines.append(f"  repaired   {_repairs(rule)}")
            lines.append("  capped by  mode, limits and the stop switch")
    for other, wants in answer.others:
        lines.append(
            f"  {also:<9}  {other.action} by rule {other.name}{f', if {wants}' * bool(wants)}"
        )
    return "\n".join(lines)


def _nodes_of(rule: "Rule") -> str:
    elsewhere = rule.elsewhere or "it does not apply"
    return f"its own action on {rule.nodes}; elsewhere: {elsewhere}"


def _releases(rule: "Rule") -> Iterator[str]:
    if rule.release == "manual":
        yield "by a person alone, however well it is"
        return
    yield f"when all has been well for {span(rule.healthy_for)}, by a person at any time"
    if rule.repeat_within and not rule.check:
        within = span(rule.repeat_within)
        yield f"by a person alone where the same came again within {within} of a release"


def _repairs(rule: "Rule") -> str:
    if not rule.repair:
        return "by a person alone"
    return f"{', then '.join(rule.repair)}, where repair.mode allows it"


def _as_json(answer: "Explanation") -> Mapping[str, Any]:
    rule = answer.rule
    return {
        "evidence": answer.evidence,
        "meaning": answer.meaning,
        "published": answer.published,
        "registers": answer.row,
        "ended_by": answer.ended_by,
        "action": rule.action if rule is not None else "none",
        "rule": rule.name if rule is not None else "",
        "nodes": str(rule.nodes) if rule is not None and rule.nodes is not None else "",
        "elsewhere": rule.elsewhere if rule is not None else "",
        "why": rule.why if rule is not None else "",
        "for_seconds": rule.hold if rule is not None else 0.0,
        "healthy_for_seconds": rule.healthy_for if rule is not None else 0.0,
        "release": rule.release if rule is not None else "",
        "repair": list(rule.repair) if rule is not None and rule.acts else [],
        "repeat_within_seconds": rule.repeat_within if rule is not None else 0.0,
        "also": [
            {"rule": other.name, "action": other.action, "if": wants}
            for other, wants in answer.others
        ],
    }


def _code(text: str) -> str:
    if text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no code; expected one such as xid:{text}")
    if not _CODE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no code; expected one such as xid:79")
    return text


def _count(most: int) -> Callable[[str], int]:
    """A whole number, at most the number that an agent reports, or that a rule may require."""

    def count(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= most:
            what = f"{text!r}; expected a whole number of 1 or more, {most} at most"
            raise argparse.ArgumentTypeError(what)
        return int(text)

    return count


def _detail(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        what = f"{text!r}; expected NAME=VALUE, such as verdict=gpu-reset"
        raise argparse.ArgumentTypeError(what)
    if name in _REGISTERS and re.fullmatch(r"0x[0-9a-fA-F]{1,8}", value) is None:
        what = f"{text!r} is no register; expected one such as {name}=0x00000004"
        raise argparse.ArgumentTypeError(what)
    return name, value
