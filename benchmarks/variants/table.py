"""Records of a section: printed one a line as they come, kept as JSON after each."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Record:
    """One variant of one case."""

    case: str
    variant: str
    us: float
    of_default: float
    """Time over that of the first variant of its case"""
    note: str = ""


@dataclass(slots=True)
class Table:
    """The records of one section."""

    path: Path
    records: list[Record] = field(default_factory=list)

    def add(self, case: str, variant: str, us: float, note: str = "") -> float:
        """Keep and print; the microseconds."""
        first = next((r.us for r in self.records if r.case == case), us)
        record = Record(case, variant, round(us, 3), round(us / first, 4) if first else 0.0, note)
        self.records.append(record)
        self.path.write_text(json.dumps([asdict(r) for r in self.records], indent=1))
        print(f"{case:26} {variant:34} {us:10.2f} us {record.of_default:7.1%}  {note}", flush=True)
        return us
