"""Keys, bundles and comparisons, over the API and on pages without scripts."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from urllib.parse import quote

import pytest
from api_server import CLUSTER, WHOLE, Server
from store_writer import ENVIRONMENT, KEY, PROBLEM
from test_pages import STEERING, filled_server
from visitor import Visitor

from api.pages.names import problem_words
from tuner.problems.results import Totals
from tuner.store.database import Database
from tuner.store.results import ResultStore

SECRET = re.compile(r'id="secret" readonly value="(tuner_[^"]+)"')


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from server_of_forms(f"sqlite:///{tmp_path_factory.mktemp('forms') / 'tuner.db'}")


def server_of_forms(url: str) -> Iterator[Server]:
    """A server with something on each page, and a result whose reason needs care."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("api.matrix.FRESH_S", 0.0)
        for running in filled_server(url):
            with Database.open(url) as store:  # a reason that a manifest may hold
                run = ResultStore(store).begin_run(
                    replace(KEY, environment=replace(ENVIRONMENT), seed=8)
                )
                ResultStore(store).finish_run(run, WHOLE, Totals())
            yield running


def accepted(server: Server, key: str) -> bool:
    return replace(server, key=key).call("GET", "/v1/models").status == 200


class TestKeys:
    def test_a_secret_is_shown_once_and_works(self, server: Server, visitor: Visitor) -> None:
        answer = visitor.post("/keys", {"name": "ci", "scope": "submit,urgent", "expires": "90d"})
        assert answer.status == 200, answer.body
        assert "no-store" in answer.headers["cache-control"]
        (secret,) = SECRET.findall(answer.body.decode())
        assert accepted(server, secret)
        page = visitor.open("/keys")
        assert "submit, urgent" in page and secret not in page and not SECRET.search(page)

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"name": "me"}, "choose another name"),
            ({"name": "two words"}, "should be letters, digits, - and _"),
            ({"name": "x", "scope": "urgent"}, "urgent is for keys that submit jobs"),
            ({"name": "x", "expires": "2001-01-01"}, "has begun already"),
            ({"name": "local"}, "is the service's own"),
            ({"name": "x", "scope": "root"}, "unknown scope"),
        ],
    )
    def test_a_mistake_is_shown_and_makes_no_key(
        self, visitor: Visitor, fields: dict[str, str], said: str
    ) -> None:
        answer = visitor.post("/keys", fields)
        page = unescape(answer.body.decode())
        assert (answer.status, said in page) == (422, True), page
        assert not SECRET.search(page)

    def test_a_new_secret_replaces_the_old_one(self, server: Server, visitor: Visitor) -> None:
        made = server.call("POST", "/v1/keys", {"name": "turning", "scope": "read"})
        assert (made.status, made.headers["cache-control"]) == (201, "no-store")
        answer = visitor.post("/keys/turning/rotate")
        (secret,) = SECRET.findall(answer.body.decode())
        assert secret != made.json["key"] and accepted(server, secret)
        names = [key["name"] for key in server.call("GET", "/v1/keys").json["keys"]]
        assert "turning" in names and any(name.startswith("turning#") for name in names)
        again = server.call("POST", "/v1/keys/turning/rotate").json
        assert (again["scopes"], again["state"]) == (["read"], "valid")
        server.call("POST", "/v1/keys/nobody/rotate").problem(404)

    def test_a_revoked_key_stays_in_the_list(self, server: Server, visitor: Visitor) -> None:
        server.call("POST", "/v1/keys", {"name": "gone"})
        assert visitor.post("/keys/gone/revoke").status == 303
        assert 'aria-label="Revoke gone"' not in visitor.open("/keys")
        states = {k["name"]: k["state"] for k in server.call("GET", "/v1/keys").json["keys"]}
        assert states["gone"] == "revoked"
        assert visitor.post("/keys/gone/revoke").status == 404

    def test_the_last_admin_stays(self, server: Server, visitor: Visitor) -> None:
        refused = server.call("DELETE", "/v1/keys/me").problem(409)
        assert "make another first" in refused and "--force" not in refused
        answer = visitor.post("/keys/me/revoke")
        assert answer.status == 409 and b"make another first" in answer.body

    def test_what_ends_something_is_asked_about_without_scripts(
        self, server: Server, visitor: Visitor
    ) -> None:
        server.call("POST", "/v1/keys", {"name": "asked"})
        html = visitor.open("/keys")
        (what,) = re.findall(r'name="ask" value="(Revoke asked)"', html)
        answer = visitor.post("/keys/asked/revoke", {"ask": what})
        assert answer.status == 200 and b"Revoke asked?" in answer.body
        assert b'name="ask"' not in answer.body  # sent again from there, it is done
        states = {k["name"]: k["state"] for k in server.call("GET", "/v1/keys").json["keys"]}
        assert states["asked"] == "valid"
        assert visitor.post("/keys/asked/revoke").status == 303

    def test_only_admins_see_and_change_keys(self, server: Server) -> None:
        key = server.call("POST", "/v1/keys", {"name": "reader", "scope": "submit"}).json["key"]
        reader = replace(server, key=key)
        reader.call("GET", "/v1/keys").problem(403)
        reader.call("POST", "/v1/keys", {"name": "mine", "scope": "admin"}).problem(403)
        reader.call("POST", "/v1/keys/me/rotate").problem(403)
        reader.call("DELETE", "/v1/keys/me").problem(403)
        someone = Visitor(replace(server, key=None))
        someone.log_in(key)
        assert someone.send("GET", "/keys").status == 403


class TestBundles:
    def test_what_is_in_it_is_shown_before_it_is_downloaded(self, visitor: Visitor) -> None:
        fields = {"cluster": CLUSTER, "device": "NVIDIA_L40S", "allow_missing": "true"}
        answer = visitor.post("/bundles", fields)
        html = unescape(answer.body.decode())
        assert answer.status == 200, html
        assert "one-node-NVIDIA_L40S" in html and "nodes/node-1/bare.sh" in html
        assert "Not in it" in html
        sent = visitor.post("/bundles", {**fields, "download": "true"})
        assert sent.headers["content-type"] == "application/gzip"
        assert 'filename="one-node-NVIDIA_L40S.tar.gz"' in sent.headers["content-disposition"]
        with tarfile.open(fileobj=io.BytesIO(sent.body)) as tar:
            assert "one-node-NVIDIA_L40S/MANIFEST.json" in tar.getnames()

    def test_the_api_gives_the_same_archive(self, server: Server, visitor: Visitor) -> None:
        body = {"cluster": CLUSTER, "device": "L40S", "allow_missing": True}
        answer = server.call("POST", "/v1/bundles", body)
        assert answer.status == 200, answer.body
        fields = {"cluster": CLUSTER, "device": "L40S", "allow_missing": "true"}
        assert visitor.post("/bundles", {**fields, "download": "true"}).body == answer.body

    def test_a_server_reads_no_file_of_its_own_for_a_cluster(self, server: Server) -> None:
        for path in ("/etc/passwd", "../config.json"):
            text = CLUSTER.replace("[parallel]", f'config = "{path}"\n[parallel]')
            refused = server.call("POST", "/v1/bundles", {"cluster": text, "device": "L40S"})
            assert "which a server does not read" in refused.problem(422)
        for version in ("../../etc", "a/b"):
            text = CLUSTER.replace("[model]", f'version = "{version}"\n[model]')
            server.call("POST", "/v1/bundles", {"cluster": text, "device": "L40S"}).problem(422)

    def test_mistakes_are_shown_where_they_are(self, visitor: Visitor) -> None:
        good = {"cluster": CLUSTER, "device": "L40S"}
        for wrong, status, said in (
            ({"cluster": "name = ["}, 422, "cluster.toml"),
            ({"cluster": CLUSTER.replace("tp = 32", "tp = 7")}, 422, "tp"),
            ({"cluster": CLUSTER.replace("one-node", STEERING.replace('"', ""))}, 422, ""),
            ({"device": "L4OS"}, 422, "did you mean"),
            ({}, 200, "No bundle"),  # servers ask for files that it would lack
            ({"device": "H20"}, 200, "the store has no winners"),
        ):
            answer = visitor.post("/bundles", {**good, **wrong})
            html = unescape(answer.body.decode())
            assert (answer.status, said in html) == (status, True), (wrong, html)
            assert b"<script>alert" not in answer.body
            assert not re.search(r"[\x80-\x9f\u202a-\u202e\u2066-\u2069]", answer.body.decode())


class TestCompare:
    def test_any_problem_is_found_and_any_two_of_its_results_are_shown(
        self, visitor: Visitor
    ) -> None:
        html = visitor.open("/compare")
        assert "2 devices: H200, L40S" in html
        assert "No result matches" in visitor.open("/compare?q=nothing-has-this-name")
        assert quote(PROBLEM.spec(), safe="") in visitor.open("/compare?q=int8_w8a8")
        spec = quote(PROBLEM.spec())
        for left, right in (("L40S:0", "L40S:1"), ("H200:0", "L40S:1"), ("L40S", "H200")):
            page = visitor.open(f"/compare?problem={spec}&left={left}&right={right}")
            assert page.count(" selected>") == 2 and "As fast" in page
        page = visitor.open(f"/compare?problem={spec}&left=L40S:0&right=L40S:1")
        assert re.search(
            r"<strong>sglang 0[^<]*</strong> is <strong>1.00×</strong> as fast as", page
        )
        assert "slower at none of 1 size." in page
        assert problem_words(PROBLEM.spec()) in html
        assert visitor.send("GET", f"/compare?problem={spec}&left=L40S:9").status == 404
