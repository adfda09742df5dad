"""Write the table of docs/frameworks.md from hardware/software.yaml; --check only compares."""

import sys
from pathlib import Path

from projector.config.framework import Profile, Rule, profiles

PAGE = Path(__file__).parent / "frameworks.md"
MARK = "<!-- table -->\n"


def _when(rule: Rule) -> str:
    parts = []
    if rule.since:
        parts.append(f"from {rule.since}")
    if rule.before:
        parts.append(f"before {rule.before}")
    if rule.architectures:
        parts.append(", ".join(rule.architectures))
    return "; ".join(parts) or "always"


def _rows(key: str, profile: Profile) -> list[str]:
    rows = [
        f"| `{key}` | {_when(rule)} | `{field}: {str(stated.value).lower()}` |"
        for rule in profile.rules
        for field, stated in rule.set.items()
    ]
    return rows or [f"| `{key}` | | nothing yet |"]


def table() -> str:
    """Return the table, a row a value."""
    lines = ["| framework | when | default |", "|---|---|---|"]
    for key, profile in profiles().by_key.items():
        lines += _rows(key, profile)
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page, or say whether it is current."""
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(MARK)
    _, _, tail = rest.lstrip("\n").partition("\n\n")
    page = f"{head}{MARK}\n{table()}" + (f"\n{tail}" if tail else "")
    if "--check" in sys.argv:
        return int(page != text)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
