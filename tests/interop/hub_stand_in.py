"""A stand-in for the Hub's HTTP interface on this machine: repositories, their trees, large files, commits."""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LARGE = (".safetensors", ".pt", ".bin")


def git_hash(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class StandIn(ThreadingHTTPServer):
    """Repositories by name: files by path. `most_commits` is how many are taken before every request fails."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories, self.large, self.tokens, self.uploads = {}, {}, set(), []
        self.num_commits, self.most_commits, self.refusal = 0, None, None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: StandIn  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def log_message(self, format, *_):  # noqa: A002
        pass

    def answer(self, content, status=200):
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_GET(self):
        name = "/".join(self.path.split("?")[0].split("/")[3:5])
        files = self.server.repositories.get(name)
        if files is None or self.server.refusal:
            return self.answer({"error": "no"}, self.server.refusal or 404)
        if "/tree/" not in self.path:
            return self.answer({"id": name, "sha": "1"})
        rows = []
        for path, content in files.items():
            row = {"type": "file", "path": path, "size": len(content)}
            row["oid"] = git_hash(content)
            if path.endswith(LARGE):
                row["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            rows.append(row)
        return self.answer(rows)

    def do_PUT(self):
        content = self.body()
        self.server.large[hashlib.sha256(content).hexdigest()] = content
        self.server.uploads.append(len(content))
        self.answer({})

    def do_POST(self):
        content = self.body()
        self.server.tokens.add(self.headers.get("Authorization"))
        if self.server.refusal:
            return self.answer({"error": "no"}, self.server.refusal)
        if self.path == "/api/repos/create":
            name = "/".join(filter(None, (json.loads(content).get("organization"), json.loads(content)["name"])))
            self.server.repositories.setdefault(name, {".gitattributes": b""})
            return self.answer({"url": f"{self.server.address}/{name}"})
        if self.path == "/api/validate-yaml":  # of a card
            return self.answer({"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            files = json.loads(content)["files"]
            modes = [("lfs" if one["path"].endswith(LARGE) else "regular", one["path"]) for one in files]
            files = self.server.repositories["/".join(self.path.split("/")[3:5])]
            rows = [{"path": path, "uploadMode": mode, "shouldIgnore": False} for mode, path in modes]
            for row in rows:
                if (there := files.get(row["path"])) is not None:
                    hashed = hashlib.sha256(there).hexdigest() if row["uploadMode"] == "lfs" else git_hash(there)
                    row["oid"] = hashed
            return self.answer({"files": rows})
        if self.path.endswith("/objects/batch"):
            objects = [self.to_upload(one) for one in json.loads(content)["objects"]]
            return self.answer({"transfer": "basic", "objects": objects})
        return self.commit(content)

    def to_upload(self, one):
        there = one["oid"] in self.server.large
        return one if there else one | {"actions": {"upload": {"href": f"{self.server.address}/put/{one['oid']}"}}}

    def commit(self, content):
        if self.server.num_commits == self.server.most_commits:
            return self.answer({"error": "gone"}, 500)
        self.server.num_commits += 1
        files = self.server.repositories["/".join(self.path.split("/")[3:5])]
        for line in map(json.loads, content.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.large[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        return self.answer({"commitUrl": f"{self.server.address}/x/y/commit/1", "commitOid": "1"})
