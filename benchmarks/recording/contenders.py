"""The compared recorders, and what outlives a crash of each."""

from __future__ import annotations

from dataclasses import dataclass

from feeding.contenders import Contender

OURS = "gear-os"
#: Contenders of Reverb whose items belong to one environment, as windows of episodes do.
REVERB = ("reverb", "reverb-every-step", "reverb-process", "reverb-trajectory")
#: Reverb with one step of all environments as one step: its items hold all of them.
TOGETHER = "reverb-together"


@dataclass(frozen=True)
class Recorder:
    """A contender, and what it keeps.

    Attributes:
        contender: its process. It makes its own steps, so it reads no data.
        process_dies: the steps that outlive the process.
        power_fails: the steps that outlive a loss of power.
        writer_apart: beside a sampler, the writer has its own process. None: no sampling is measured.
    """

    contender: Contender
    process_dies: str
    power_fails: str
    writer_apart: bool | None = None

    @property
    def name(self) -> str:
        return self.contender.name


def recorder(
    name: str,
    title: str,
    script: str,
    environment: str | None,
    *arguments: str,
    dies: str,
    fails: str,
    apart: bool | None = None,
) -> Recorder:
    return Recorder(Contender(name, title, script, "steps", environment, arguments), dies, fails, apart)


def _gear(name: str, title: str, *arguments: str, fails: str, apart: bool | None = None) -> Recorder:
    dies = "all episodes that ended"
    return recorder(name, title, "gear_writer.py", None, *arguments, dies=dies, fails=fails, apart=apart)


def _reverb(name: str, title: str, *arguments: str, dies: str = "none", apart: bool | None = None) -> Recorder:
    fails = "none without a checkpoint"
    return recorder(name, title, "reverb_writer.py", "reverb", *arguments, dies=dies, fails=fails, apart=apart)


RECORDERS = (
    _gear(OURS, 'gear-data, durability="os"', fails="what the system wrote", apart=True),
    _gear("gear-episode", 'gear-data, durability="episode"', "--durability", "episode", fails="all that ended"),
    _gear("gear-server", "gear-data, server", "--server", "--durability", "flush", fails="all that ended"),
    _reverb("reverb", "Reverb Writer", apart=False),
    _reverb("reverb-every-step", "Reverb Writer, an item at every step", "--every", "1"),
    _reverb(
        "reverb-process", "Reverb Writer, server in its own process", "--server", "process", dies="all", apart=False
    ),
    _reverb("reverb-trajectory", "Reverb TrajectoryWriter", "--writer", "trajectory"),
    _reverb(TOGETHER, "Reverb TrajectoryWriter, a step of all is one step", "--writer", "together"),
    recorder(
        "torchrl",
        "TorchRL LazyMemmapStorage",
        "torchrl_writer.py",
        "torchrl",
        dies="the steps, without the index (dumps)",
        fails="what the system wrote",
        apart=False,
    ),
    recorder(
        "flashbax",
        "Flashbax trajectory buffer with Vault",
        "flashbax_writer.py",
        "flashbax",
        dies="what Vault.write wrote",
        fails="what the system wrote of it",
        apart=False,
    ),
    recorder(
        "lerobot",
        "LeRobot add_frame, save_episode",
        "lerobot_writer.py",
        "lerobot",
        dies="none before finalize",
        fails="none before finalize",
    ),
    recorder(
        "minari",
        "Minari DataCollector",
        "minari_writer.py",
        "minari",
        dies="none before create_dataset",
        fails="none before create_dataset",
    ),
)
#: gear-data in other ways beside a sampler. Their insertion is not measured.
SAMPLERS = (
    _gear("gear-journal", "gear-data, nothing published", "--publish-every", "0", fails="", apart=True),
    _gear("gear-thread", "gear-data, writer in a thread of the loader's process", fails="", apart=False),
    _gear("gear-inline", "gear-data, prefetch=0", "--prefetch", "0", fails="", apart=True),
)


def chosen(names: str | None) -> tuple[Recorder, ...]:
    """Returns the named contenders (None: all), and gear-data.

    Raises SystemExit for an unknown name.
    """
    known = (*RECORDERS, *SAMPLERS)
    if names is None:
        return known
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := set(wanted) - {each.name for each in known}:
        listed = ", ".join(each.name for each in known)
        raise SystemExit(f"unknown recorders {', '.join(sorted(unknown))}; known: {listed}")
    return tuple(each for each in known if each.name in {OURS, *wanted})
