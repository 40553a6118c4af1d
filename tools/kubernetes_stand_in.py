"""So much of Kubernetes' API that Spark's backend gets its executors: pods are processes in the root of an image.

Spark lists, creates and deletes pods and config maps. Of what it asks for in a pod, the process gets arguments,
variables, settings and empty folders. There is no scheduling, no network of pods, no limit of memory, and nothing is
watched: set ``spark.kubernetes.executor.enableApiWatcher`` to false.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from image_replay import Image

END_SECONDS = 20.0
DRIVER = "notebook"
"""The pod that runs the driver, which was there before."""
EMPTY = {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []}


@dataclass
class Pod:
    """What was asked for, and the process that it has become."""

    asked: dict[str, Any]
    process: subprocess.Popen[bytes]

    @property
    def phase(self) -> str:
        ended = self.process.poll()
        return "Running" if ended is None else "Succeeded" if ended == 0 else "Failed"

    def shown(self) -> dict[str, Any]:
        return {**self.asked, "status": {"phase": self.phase}}


@dataclass
class Cluster:
    """The pods and config maps of one namespace; the addresses of pods are loopback ones, from 127.0.0.2 on."""

    image: Image
    logs: Path
    pods: dict[str, Pod] = field(default_factory=dict)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)

    def create_pod(self, asked: dict[str, Any]) -> dict[str, Any]:
        name, address = asked["metadata"]["name"], f"127.0.0.{len(self.pods) + 2}"
        (container,) = asked["spec"]["containers"]
        self._mount(asked["spec"].get("volumes", []), container.get("volumeMounts", []))
        fields = {"status.podIP": address, "metadata.name": name}
        variables = {each["name"]: value_of(each, fields) for each in container["env"]}
        with (self.logs / f"{name}.log").open("wb") as log:
            command = self.image.enter(*self.image.entrypoint, *container["args"])
            process = subprocess.Popen(
                command, env={**self.image.variables, **variables}, stdout=log, stderr=subprocess.STDOUT
            )
        asked["metadata"]["uid"] = name
        self.pods[name] = Pod(asked, process)
        return self.pods[name].shown()

    def create_settings(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.settings[asked["metadata"]["name"]] = asked["data"]
        return asked

    def delete_pod(self, name: str) -> dict[str, Any]:
        if pod := self.pods.get(name):
            end(pod.process)
        return {"kind": "Status", "status": "Success"}

    def show_pod(self, name: str) -> dict[str, Any]:
        if name != DRIVER:
            return self.pods[name].shown()
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        return {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "uid": name}, "status": status}

    def list_pods(self) -> dict[str, Any]:
        items = [pod.shown() for pod in self.pods.values()]
        return {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}

    def end(self) -> None:
        for pod in self.pods.values():
            end(pod.process)

    def _mount(self, volumes: list[dict[str, Any]], mounts: list[dict[str, Any]]) -> None:
        """Make the folders that the pod mounts: empty ones that all may write to, and those of config maps."""
        paths = {mount["name"]: self.image.root / mount["mountPath"].lstrip("/") for mount in mounts}
        for volume in volumes:
            folder = paths[volume["name"]]
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777 if "emptyDir" in volume else 0o755)
            for name, text in self.settings.get(volume.get("configMap", {}).get("name"), {}).items():
                (folder / name).write_text(text, encoding="utf-8")


@contextmanager
def serving(cluster: Cluster) -> Iterator[str]:
    """The address of an API server for ``cluster``, whose pods end with it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(cluster))
    thread = threading.Thread(target=server.serve_forever, name="kubernetes-stand-in")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(END_SECONDS)
        server.server_close()
        cluster.end()


def handler(cluster: Cluster) -> type[BaseHTTPRequestHandler]:
    """Requests to ``/api/v1/namespaces/NAMESPACE/KIND[/NAME]``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, name = self.asked_for()
            if kind != "pods":
                return self.answer(200, EMPTY)
            self.answer(200, cluster.show_pod(name) if name else cluster.list_pods())

        def do_POST(self) -> None:
            kind, _ = self.asked_for()
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            create: dict[str, Callable[[dict[str, Any]], dict[str, Any]]]
            create = {"pods": cluster.create_pod, "configmaps": cluster.create_settings}
            self.answer(201, create[kind](body))

        def do_DELETE(self) -> None:
            kind, name = self.asked_for()
            self.answer(200, cluster.delete_pod(name) if kind == "pods" and name else EMPTY)

        def asked_for(self) -> tuple[str, str]:
            kind, _, name = urlsplit(self.path).path.split("/", 5)[5].partition("/")
            return kind, name

        def answer(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: Any) -> None:
            with (cluster.logs / "api.log").open("a", encoding="utf-8") as log:
                log.write(f"{format % arguments}\n")

    return Handler


def value_of(variable: dict[str, Any], fields: dict[str, str]) -> str:
    """The value of a variable that is given, or taken from a field of the pod."""
    if "valueFrom" in variable:
        return fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
    return str(variable.get("value", ""))


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(END_SECONDS)
