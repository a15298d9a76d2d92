"""An aggregator that `spark-submit` starts by a line of the documentation."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aggregator_world import Process, Topics, settings_of

from isotherm.servicekit.lifecycle import Exit
from isotherm.stack.ports import LOOPBACK
from isotherm.stack.servers import probes

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "spark-cluster.md"

_OF_THE_JVM = ("jars_dir", "spark.master", "spark.java_options", "spark.class_archive")
"""What only an aggregator has that starts its JVM itself."""
_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_ENDED_BY_SIGTERM = 128 + signal.SIGTERM


def printed_line(master: str, checkpoint: str = "") -> str:
    """The line of the page that submits to a master, with a checkpoint that it names or without one."""
    blocks: list[str] = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    fitting = (block for block in blocks if block.startswith("spark-submit") and f'--master "{master}"' in block)
    (found,) = (block for block in fitting if (f"checkpoint_dir={checkpoint}" in block) == bool(checkpoint))
    return found


class Submitted(Process):
    """One `spark-submit`, with settings in `aggregator.toml` and properties in `spark-defaults.conf`.

    It runs in a folder beside the checkpoint.
    """

    def __init__(
        self,
        line: str,
        topics: Topics,
        checkpoint: Path,
        ports: tuple[int, int],
        defaults: Mapping[str, str],
        **settings: object,
    ) -> None:
        self.port, self.ui_port = ports
        self.folder = checkpoint
        self.log = checkpoint.with_suffix(f".{self.port}.log")
        work = checkpoint.with_suffix(".submitted")
        work.mkdir()
        chosen = {"advance_when_idle": False, "group_attributes": "", "http.port": self.port, **settings}
        given = settings_of(topics, checkpoint, **chosen, **{"spark.ui_port": self.ui_port})[1::2]
        pairs = (each.partition("=") for each in given)
        lines = [f"{key} = {json.dumps(value)}\n" for key, _, value in pairs if key not in _OF_THE_JVM]
        (work / "aggregator.toml").write_text("".join(lines), encoding="utf-8")
        properties = {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.extraJavaOptions": _QUICK,
            "spark.executor.extraJavaOptions": _QUICK,
            "spark.executor.memory": "512m",
            "spark.local.dir": str(work),
            **defaults,
        }
        text = "".join(f"{name} {value}\n" for name, value in properties.items())
        (work / "spark-defaults.conf").write_text(text, encoding="utf-8")
        environment = {
            **os.environ,
            # The Python of the driver is the first one, as in an activated environment.
            "PATH": f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "SPARK_CONF_DIR": str(work),
            "SPARK_LOCAL_IP": LOOPBACK,
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def ask_spark(self, path: str) -> Any:
        """What the REST API of Spark's own page says; None while it does not answer."""
        answer = probes.get(self.ui_port, f"/api/v1/{path}", 30)
        return answer.json() if answer is not None and answer.is_ok else None

    def spark_properties(self) -> dict[str, str]:
        """The properties with which Spark runs."""
        (application,) = self.ask_spark("applications")
        return dict(self.ask_spark(f"applications/{application['id']}/environment")["sparkProperties"])

    def end(self) -> None:
        """End it as Kubernetes does: by a signal to the JVM, which the service follows."""
        assert self.terminate() in (Exit.OK, _ENDED_BY_SIGTERM), self.log_text()[-3_000:]
        assert '"spark stopped"' in self.log_text()
