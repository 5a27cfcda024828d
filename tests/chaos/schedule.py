"""What goes wrong, and when: a schedule is made from its seed alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tests.chaos import faults


@dataclass(frozen=True)
class Setting:
    """The portals and the mount that schedules run with."""

    portals: int = 2
    is_shared: bool = False
    """Whether one portal is behind all proxies, as all portals of one network have the same."""
    tls: bool = False
    verify: str = "require"
    disk_cache: str = "off"
    writes: bool = True
    """Whether registry entries and documents are written, and content is published."""
    timeout: float = 10.0
    kills_daemons: bool = True


@dataclass(frozen=True)
class Step:
    """One step of a schedule."""

    what: str
    """"break", "heal", "wait", "kill daemon"."""
    portal: int = 0
    mode: str = ""
    share: float = 1.0
    seed: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        words = {
            "break": f"portal {self.portal}: {self.mode} ({self.share:.0%})",
            "heal": f"portal {self.portal}: healthy",
            "wait": f"{self.seconds:.2f} s",
        }
        return words.get(self.what, self.what)


@dataclass(frozen=True)
class Schedule:
    """Steps, one after the other; the work goes on meanwhile."""

    seed: int
    all_broken: bool
    """Whether there is a time in which no portal is healthy."""
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return f"seed {self.seed}: " + "; ".join(map(str, self.steps))


def make_schedule(seed: int, setting: Setting, seconds: float, pieces: int = 2) -> Schedule:
    """Make a schedule of about so many seconds with so many times of faults."""
    random = Random(f"schedule {seed}")
    all_broken = random.random() < 0.2
    worst = random.randrange(pieces) if all_broken else -1
    steps: list[Step] = []
    for piece in range(pieces):
        count = setting.portals if piece == worst else random.randint(1, setting.portals - 1)
        order = random.sample(range(1, setting.portals), setting.portals - 1)
        # The first portal is asked first: without it little is seen of what is wrong elsewhere.
        order.insert(0 if random.random() < 0.75 else setting.portals, 0)
        steps += _broken(random, setting, order[:count], seconds / pieces)
    if setting.kills_daemons and random.random() < 0.1:
        steps.insert(random.randrange(len(steps)), Step("kill daemon"))
    return Schedule(seed, all_broken, tuple(steps))


def _broken(random: Random, setting: Setting, portals: list[int], seconds: float) -> Iterator[Step]:
    """Break these portals for a while, then let all be healthy for a moment."""
    for portal in portals:
        mode, share = _mode(random, setting, all_broken=len(portals) == setting.portals)
        yield Step("break", portal, mode, share, random.randrange(1 << 30))
    yield Step("wait", seconds=seconds * random.uniform(0.5, 1.0))
    for portal in portals:
        yield Step("heal", portal)
    yield Step("wait", seconds=seconds * random.uniform(0.05, 0.4))


def _mode(random: Random, setting: Setting, *, all_broken: bool) -> tuple[str, float]:
    """Choose what is wrong, and with which share of the requests."""
    groups = [faults.SILENT, faults.BROKEN_OFF, faults.REFUSALS, faults.LIES, ("mixed",)]
    if all_broken and setting.verify != "require":
        # Without any proof the mount may serve what it was told (T4, T6).
        groups = [faults.SILENT, faults.BROKEN_OFF]
    if setting.tls:
        groups.append(faults.TLS)
    if not setting.is_shared:
        groups.append(faults.PROCESS)
    mode = random.choice(random.choice(groups))
    return mode, random.choice([1.0, 1.0, 0.5, 0.2]) if mode != "refuse" else 1.0
