"""The overview as text: what a tired person needs comes first, nothing is wider than 100 characters."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence

from . import __version__
from .engine import ledger, versions
from .inspection.installed import FRAMEWORKS
from .overview import PatchRow, by_patch, is_meant
from .runtime import records
from .settings import format_duration
from .tables import heading, one_line, paragraph, table

if TYPE_CHECKING:
    from .overview import Status

_STATES = (ledger.APPLIED, ledger.WAITING, ledger.SKIPPED, ledger.FAILED)
_MOST_STALLS = 3
_MOST_RANKS = 16  # rows of the table of ranks; those without a fault are left out first


def text(status: Status, colours: bool = False) -> str:
    """All of a status; the parts are those that its kind (process, before a run, job) has."""
    parts = [headline(status)]
    parts += warnings(status.warnings, colours)
    if status.packages:
        parts.append(section("Installed", packages(status.packages), colours))
    if status.run:
        size = _number(status.run.get("world_size"))
        parts.append(section("Ranks", ranks(status.ranks, size, colours), colours))
    if status.run and status.run.get("stalls"):
        parts.append(section("Stall reports", stalls(status.run["stalls"]), colours))
    parts.append(section("Patches", patches(status.patches, not status.ranks, colours), colours))
    parts += tracebacks(status.patches, colours)
    parts.append(section("Settings", settings(status.settings), colours))
    parts.append(section("Limits", limits(status.limits), colours))
    return "\n\n".join(parts)


def section(title: str, body: str, colours: bool = False) -> str:
    """A heading and what is below it."""
    return heading(title, colours) + "\n" + body


def headline(status: Status) -> str:
    """One paragraph that says whether all is well."""
    if status.run:
        return paragraph("Run %s, %s" % (status.run.get("run", "?"), of_run(status)), indent=0)
    if status.packages or not status.ranks:
        return paragraph(_of_installation(status), indent=0)
    rank = status.ranks[0]
    who = "rank %s, " % rank["rank"] if rank.get("rank") is not None else ""
    named = dict.fromkeys("%s %s" % (row.package, row.version) for row in status.patches if row.version)
    line = "ddp_patches %s in this process (%s%s, pid %s): %s" % (
        __version__, who, rank["host"], rank["pid"], counts(by_patch(status.patches).values())
    )  # fmt: skip
    return paragraph(line + (" (%s)" % ", ".join(named) if named else ""), indent=0)


def of_run(status: Status) -> str:
    """A job in one sentence: when, how many ranks, what was applied."""
    run, found = status.run, status.ranks
    hosts = len({rank.get("host") for rank in found})
    size = _number(run.get("world_size")) or len(found)
    with_it = "on" if len(found) == size else "on, but only"
    shape = "%s for %d of %d %s on %d %s" % (
        with_it, len(found), size, _plural("rank", size), hosts, _plural("host", hosts)
    )  # fmt: skip
    return "started %s%s: %s; %s" % (
        run.get("started", "?"),
        " by %s" % run["launcher"] if run.get("launcher") else "",
        shape,
        counts(by_patch(status.patches).values()),
    )


def _of_installation(status: Status) -> str:
    start = "ddp_patches %s, Python %s. " % (__version__, platform.python_version())
    if not any(name in status.packages for name in FRAMEWORKS):
        return start + "No framework is installed in this Python, so there is nothing to patch."
    states = by_patch([row for row in status.patches if row.package in status.packages])
    would = [id for id, state in states.items() if state == ledger.WAITING]
    line = "A training here gets %d of %d patches" % (len(would), len(states))
    if status.warnings:
        line += ", and there %s to look at" % (
            "is 1 thing" if len(status.warnings) == 1 else "are %d things" % len(status.warnings)
        )
    return start + line + "."


def counts(states: Any) -> str:
    """``7 applied, 1 skipped`` of a sequence of states."""
    found = list(states)
    known = ["%d %s" % (found.count(state), state) for state in _STATES if state in found]
    return ", ".join(known) or "no patches"


def warnings(found: Sequence[Mapping[str, str]], colours: bool = False) -> List[str]:
    """What may fail later, with what to do about it."""
    if not found:
        return []
    rows = []
    for warning in found:
        advice = warning.get("advice")
        rows.append(["!", warning["message"] + (" -> " + advice if advice else "")])
    return [section("Look at this", table(rows), colours)]


def packages(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The frameworks, and those that are not there in one line."""
    rows = []
    for name, package in found.items():
        plain = "%s %s" % (name, package["version"])
        others = [text for text in package["distributions"] if text != plain]
        origin = "" if plain in package["distributions"] else "no distribution (a checkout?)"
        rows.append([name, package["version"] or "?", ", ".join(others) or origin, package["path"]])
    if not any(row[2] for row in rows):
        rows = [[row[0], row[1], row[3]] for row in rows]
    missing = [name for name in FRAMEWORKS if name not in found]
    line = paragraph("not installed: " + ", ".join(missing)) if missing else ""
    return "\n".join(part for part in (table(rows) if rows else "", line) if part)


def patches(rows: Sequence[PatchRow], forecast: bool, colours: bool = False) -> str:
    """One line per patch and target; those that wait or whose framework is not installed share a line."""
    if not rows:
        return paragraph("none")
    meant = [row for row in rows if is_meant(row, rows)]
    if forecast:
        later = [row for row in meant if row.verdict == versions.ABSENT and not row.version]
    else:
        later = [row for row in meant if row.state == ledger.WAITING]
    shown = [row for row in meant if row not in later]
    lines = [
        [
            row.id,
            "would apply" if forecast and row.state == ledger.WAITING else row.state,
            row.verdict or "-",
            _details(row),
        ]
        for row in shown
    ]
    parts = [table(lines, ["id", "state", "verdict", "target"], colours=colours)] if lines else []
    for reason in dict.fromkeys(row.reason for row in later):
        ids = dict.fromkeys(row.id for row in later if row.reason == reason)
        parts.append(paragraph("%s: %s" % (reason, ", ".join(ids))))
    if any(row.verdict == versions.SAME for row in shown):
        parts.append(paragraph("same: our tests ran this very code in another release"))
    if any(row.verdict == versions.COMPATIBLE for row in shown):
        parts.append(paragraph("compatible: our tests did not run this version, but the signature fits"))
    return "\n".join(parts)


def _details(row: PatchRow) -> str:
    """The attribute that is replaced, and whatever is not as it should be."""
    parts = []
    if (
        row.state not in (ledger.APPLIED, ledger.WAITING)
        or row.verdict not in versions.FITTING
        or row.call_failures
    ):
        parts.append(row.reason)
    if row.call_failures > 1:
        parts.append("%d times so far" % row.call_failures)
    if row.unreachable:
        parts.append("still upstream's in " + ", ".join(row.unreachable))
    parts = [part for part in parts if part]
    attribute = row.target.rpartition(":")[2]
    return "%s: %s" % (attribute, "; ".join(parts)) if parts else attribute


def tracebacks(rows: Sequence[PatchRow], colours: bool = False) -> List[str]:
    """The tracebacks of failures, as they are."""
    parts: List[str] = []
    for row in rows:
        if row.traceback:
            lines = ["    " + one_line_kept(line) for line in row.traceback.rstrip().splitlines()]
            parts.append(section("Traceback of %s" % row.id, "\n".join(lines), colours))
    return parts


def one_line_kept(line: str) -> str:
    """A line of a traceback: control characters go, its indentation stays."""
    return line[: len(line) - len(line.lstrip())] + one_line(line)


def stalls(reports: Sequence[Mapping[str, Any]]) -> str:
    """The last of them, and where they are with all stacks."""
    lines = [
        paragraph("%s, after %ss: %s" % (r.get("time"), r.get("seconds"), r.get("sentence")))
        for r in reports[-_MOST_STALLS:]
    ]
    left_out = len(reports) - _MOST_STALLS
    if left_out > 0:
        lines.insert(0, paragraph("%d earlier ones; all of them: --json" % left_out))
    return "\n".join([*lines, paragraph("All stacks: %s" % reports[-1].get("path"))])


def ranks(found: Sequence[Mapping[str, Any]], world_size: int, colours: bool = False) -> str:
    """Who took part; of many ranks only the first, and those in which something differs."""
    rows = []
    for rank in found:
        states = by_patch([PatchRow.of(row) for row in rank.get("patches", ())]).values()
        place = [_or_dash(rank.get(name)) for name in ("rank", "local_rank", "host", "pid")]
        rows.append([*place, rank.get("device") or "-", counts(states)])
    left_out = 0
    if len(rows) > _MOST_RANKS:
        usual = rows[0][-1]
        kept = [row for number, row in enumerate(rows) if number == 0 or row[-1] != usual][:_MOST_RANKS]
        left_out, rows = len(rows) - len(kept), kept
    lines = [table(rows, ["rank", "local", "host", "pid", "device", "patches"], colours=colours)]
    if left_out:
        lines.append(paragraph("%d more ranks; all of them: --json" % left_out))
    lines += [paragraph(line) for line in _with_versions(found)]
    known = {rank.get("rank") for rank in found}
    missing = [number for number in range(world_size) if number not in known]
    if missing:
        who = records.ranks_phrase(missing)
        lines.append(paragraph("no record of %s: without ddp_patches, or it never joined" % who))
    return "\n".join(lines)


def _with_versions(found: Sequence[Mapping[str, Any]]) -> List[str]:
    """What is installed: one line where all ranks have the same, else one for each set of versions."""
    groups: Dict[str, List[int]] = {}
    for rank in found:
        named = dict(rank.get("packages") or {})
        for name in ("python", "ddp_patches"):
            if rank.get(name):
                named[name] = rank[name]
        text = ", ".join("%s %s" % pair for pair in sorted(named.items()))
        groups.setdefault(text or "versions unknown", []).append(_number(rank.get("rank")))
    if len(groups) == 1:
        return ["all with " + text for text in groups]
    return ["%s with %s" % (records.ranks_phrase(ranks), text) for text, ranks in groups.items()]


def settings(found: Mapping[str, Mapping[str, Any]]) -> str:
    """What somebody chose, one line each; the defaults together."""
    given = [[name, _text_of(row), "from " + _source(name, row["source"])]
             for name, row in found.items() if row.get("source") != "default"]  # fmt: skip
    rest = ["%s=%s" % (name, _text_of(row)) for name, row in found.items() if row.get("source") == "default"]
    lines = [table(given)] if given else []
    if rest:
        lines.append(paragraph("default: " + " ".join(rest)))
    return "\n".join(lines)


def _text_of(row: Mapping[str, Any]) -> str:
    return str(row.get("text", row.get("value")))


def _source(name: str, source: str) -> str:
    return "DDP_PATCHES_%s" % name.upper() if source == "environment" else "the %s of enable()" % source


def limits(found: Mapping[str, Any]) -> str:
    """Timeouts and who set them, waiting, heartbeat, store, launcher."""
    rows: List[List[str]] = []
    for group in found.get("groups", ()):
        seconds = group.get("timeout")
        shown = format_duration(seconds) if isinstance(seconds, (int, float)) else seconds
        rows.append(["group %s" % group.get("group"), "%s, set by %s" % (shown, group.get("set_by"))])
    timeout = found.get("group_timeout")
    if timeout and not rows:
        floor = timeout.get("floor")
        shown = "the caller's own" if floor is None else "at least %s" % format_duration(floor)
        rows.append(["group timeout", "%s for collectives; an explicit longer one is kept" % shown])
    not_set = []
    for title, key in (("blocking wait", "blocking_wait"), ("asynchronous errors", "async_error_handling"),
                       ("heartbeat", "heartbeat"), ("store", "store")):  # fmt: skip
        part = found.get(key)
        if not part:
            continue
        named = _variables(part)
        if "value" in part:
            rows.append([title, "setting %s; %s" % (part["value"], named or "no variable is set")])
        elif named:
            rows.append([title, named])
        else:
            not_set.append(title)
    launcher = found.get("launcher")
    if launcher is not None:
        name = launcher.get("name") or "none: this process is no rank of a job"
        rows.append(["launcher", (name + " " + _variables(launcher)).strip()])
    rows += [["changed", str(sentence)] for sentence in found.get("changes", ())]
    lines = [table(rows)] if rows else []
    if not_set:
        lines.append(paragraph("no variables for: " + ", ".join(not_set)))
    return "\n".join(lines) or paragraph("none recorded")


def _variables(part: Mapping[str, Any]) -> str:
    named: Dict[str, Any] = part.get("variables") or {}
    return " ".join("%s=%s" % pair for pair in named.items())


def _or_dash(value: Any) -> Any:
    return "-" if value is None else value


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _plural(word: str, count: int) -> str:
    return word if count == 1 else word + "s"
