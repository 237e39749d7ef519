"""A package with entry points in ``sickbay.checks``, as pip would have installed it."""

from pathlib import Path


def install(folder: Path, module: str, text: str, entry_points: str) -> Path:
    """The folder for PYTHONPATH. ``entry_points``: lines such as "name = module:SPEC"."""
    site = folder / "site"
    info = site / f"{module}-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (site / f"{module}.py").write_text(text)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sickbay.checks]\n{entry_points}\n")
    return site
