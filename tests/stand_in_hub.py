"""A hub on loopback: folders served as the revisions of one repository, in the part of the protocol that clients use.

Weights are Git LFS files, as on the hub; a download can be held up for as long as a test wants.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

Hold = Callable[[str, str], None]  # told the revision and the file that someone is about to download


class StandInHub(ThreadingHTTPServer):
    """Serves `branches` and `tags`, folders by their names, as the repository owner/tiny. `downloads` lists what was
    downloaded, as (revision, file)."""

    daemon_threads = True

    def __init__(self, branches: Mapping[str, Path], tags: Mapping[str, Path] | None = None, hold: Hold | None = None):
        super().__init__(("127.0.0.1", 0), Answer)
        self.branches, self.tags = dict(branches), dict(tags or {})
        self.folders = {commit_of(name): path for name, path in (self.branches | self.tags).items()}
        self.names = {commit_of(name): name for name in self.branches | self.tags}
        self.hold = hold or (lambda revision, file: None)
        self.downloads: list[tuple[str, str]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def replace_the_real_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """For the client of this process."""
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", self.url)
        where = f"{self.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", where)

    def handle_error(self, *_: object) -> None:
        """Who asked was killed."""

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


def commit_of(name: str) -> str:
    return hashlib.sha1(name.encode()).hexdigest()


class Answer(BaseHTTPRequestHandler):
    """Refs, the files of a revision, and what is in them."""

    server: StandInHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if found := re.fullmatch(r"/api/models/owner/tiny/refs", path):
            return self.give(json.dumps(self.refs()).encode())
        if found := re.fullmatch(r"/api/models/owner/tiny/(tree|revision)/([^/]+)", path):
            if (commit := self.commit(found[2])) is None:
                return self.refuse(404, "RevisionNotFound")
            about = {"id": "owner/tiny", "sha": commit, "tags": [], "siblings": []}
            return self.give(json.dumps(self.tree(commit) if found[1] == "tree" else about).encode())
        if found := re.fullmatch(r"/owner/tiny/resolve/([^/]+)/(.+)", path):
            if (commit := self.commit(found[1])) is None:
                return self.refuse(404, "RevisionNotFound")
            return self.resolve(commit, found[2])
        if path.startswith(("/api/models/owner/tiny", "/owner/tiny")):
            return self.refuse(404, "EntryNotFound")
        return self.refuse(401, "RepoNotFound")

    def refs(self) -> dict[str, Any]:
        def listed(kind: str, names: Mapping[str, Path]) -> list[dict[str, str]]:
            return [{"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": commit_of(name)} for name in names]

        return {"branches": listed("heads", self.server.branches), "tags": listed("tags", self.server.tags)} | {
            "converts": []
        }

    def commit(self, revision: str) -> str | None:
        known = self.server.names
        return revision if revision in known else next((one for one in known if known[one] == revision), None)

    def tree(self, commit: str) -> list[dict[str, Any]]:
        rows = []
        for file in sorted(self.server.folders[commit].iterdir()):
            content = file.read_bytes()
            row = {"type": "file", "path": file.name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            if file.suffix == ".safetensors":
                row["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            rows.append(row)
        return rows

    def resolve(self, commit: str, name: str) -> None:
        file = self.server.folders[commit] / name
        if not file.is_file():
            self.refuse(404, "EntryNotFound", commit)
            return
        content = file.read_bytes()
        etag = (hashlib.sha256 if file.suffix == ".safetensors" else hashlib.sha1)(content).hexdigest()
        if self.command == "GET":
            self.server.downloads.append((self.server.names[commit], name))
            self.server.hold(self.server.names[commit], name)
        self.give(content, ETag=f'"{etag}"', X_Repo_Commit=commit)

    def refuse(self, code: int, why: str, commit: str | None = None) -> None:
        self.give(b"{}", code, X_Error_Code=why, **({} if commit is None else {"X_Repo_Commit": commit}))

    def give(self, content: bytes, code: int = 200, **headers: str) -> None:
        try:
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)
        except OSError:
            pass  # who asked has gone

    def log_message(self, format: str, *args: Any) -> None:
        pass
