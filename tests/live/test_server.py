"""The live page's server: what it lists, what it refuses, and what it survives."""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from gyroscope._json import dumps
from gyroscope.cli import main
from gyroscope.live import feed as feeds
from gyroscope.live import run_index as index
from gyroscope.live.feed import Feed, LivePage
from gyroscope.live.run_index import RunIndex
from gyroscope.live.server import application
from gyroscope.store import RunError, Sample, open_run
from tests.render import make

SCRIPT = "<script>alert(1)</script>"
ROOT = Path(__file__).parents[2]


class Client:
    """A browser without a window: asks the application directly, and keeps its cookies."""

    def __init__(self, app, base_url="http://127.0.0.1:80", address="127.0.0.1", cookies=None):
        self.app = app
        self.base_url = base_url
        self.address = address
        self.cookies = cookies or httpx.Cookies()

    def get(self, address, **options):
        async def ask():
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=(self.address, 4321))
            known = {"transport": transport, "base_url": self.base_url, "cookies": self.cookies}
            async with httpx.AsyncClient(**known, follow_redirects=True) as client:
                answer = await client.get(address, **options)
                self.cookies = client.cookies
                return answer

        return asyncio.run(ask())


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(feeds, "PAUSE", 0.0)
    monkeypatch.setattr(index, "FRESH", 0.0)


@pytest.fixture
def folder(tmp_path, path):
    shutil.copytree(path, tmp_path / "runs" / "first")
    return tmp_path / "runs"


@pytest.fixture
def client(folder):
    return Client(application(RunIndex(folder)))


def listed(client):
    return {one["name"]: one for one in client.get("/runs").json()}


def test_runs_are_listed_with_their_state(client, folder):
    with make.writer(folder / "deep" / "alive", make.healthy(**make.SMALL)) as writer:
        writer.flush()
        runs = listed(client)
        assert list(runs) == ["deep/alive", "first"]
        assert (runs["deep/alive"]["status"], runs["deep/alive"]["samples"]) == ("running", 0)
        assert (runs["first"]["status"], runs["first"]["samples"], runs["first"]["step"]) == ("finished", 30, 290)
    assert listed(client)["deep/alive"]["status"] == "finished"


def test_a_corrupt_run_is_a_sentence_and_the_others_stay(client, folder):
    (folder / "broken").mkdir()
    (folder / "broken" / "run.sqlite").write_bytes(b"SQLite format 3\0" + bytes(5000))
    runs = listed(client)
    assert runs["broken"]["status"] == "unreadable"
    assert runs["broken"]["problem"]
    assert runs["first"]["status"] == "finished"
    answer = client.get("/data", params={"run": runs["broken"]["id"]})
    assert answer.status_code == 409
    assert answer.json()["error"]


def test_a_run_that_is_damaged_or_deleted_while_it_is_watched_is_a_sentence(client, folder):
    id = listed(client)["first"]["id"]
    assert client.get("/data", params={"run": id}).status_code == 200
    shutil.rmtree(folder / "first")
    for address in ("/data", "/distribution"):
        asked = {"run": id, "layer": "stem.weight", "quantity": "norm", "step": 0}
        answer = client.get(address, params=asked)
        assert answer.status_code == 409
        assert "was not found" in answer.json()["error"]
    assert listed(client) == {}
    make.run_at(folder / "first", make.healthy(**make.SMALL))
    assert client.get("/data", params={"run": id}).status_code == 200


@pytest.mark.parametrize(
    "address",
    [
        *("/view?run=../../etc", "/data?run=../../etc/passwd", "/data?run=%2e%2e%2f%2e%2e%2fetc", "/data?run=/etc"),
        *("/layer?run=..", "/layer?run=first&layer=x", "/distribution?run=../first", "/assets/../server.py"),
        *("/assets/%2e%2e%2fserver.py", "/assets/boot.js", "/../../etc/passwd", "/data?run=" + "a" * 5000),
    ],
)
def test_no_address_leads_out_of_the_directory(client, address):
    answer = client.get(address)
    assert answer.status_code == 404
    assert "root:" not in answer.text


def test_links_that_lead_out_are_not_followed(client, folder, tmp_path):
    outside = make.run_at(tmp_path / "outside", make.healthy(**make.SMALL))
    (folder / "link").symlink_to(outside)
    (folder / "half").mkdir()
    (folder / "half" / "run.sqlite").symlink_to(outside / "run.sqlite")
    assert list(listed(client)) == ["first"]


@pytest.mark.parametrize("place", ["first", "first/run.sqlite"])
def test_a_link_that_takes_the_place_of_a_run_is_not_followed(client, folder, tmp_path, place):
    outside = make.run_at(tmp_path / "outside", make.healthy(**make.SMALL))
    (run,) = client.get("/runs").json()
    assert client.get(f"/data?run={run['id']}").status_code == 200
    os.rename(folder / place, tmp_path / "moved")
    (folder / place).symlink_to(outside / Path(place).relative_to("first"))
    for address in ("/data?run={}", "/layer?run={}&layer=x", "/distribution?run={}&layer=x&quantity=norm&step=0"):
        said = client.get(address.format(run["id"])).text
        assert "a link is in its place" in said


def test_names_are_shown_and_never_run(client, folder):
    make.run_at(folder / SCRIPT, make.healthy(**make.SMALL))
    make.run_at(folder / "..%2f..%2fetc", make.healthy(**make.SMALL))
    runs = listed(client)
    for name in (SCRIPT, "..%2f..%2fetc"):
        answer = client.get("/view", params={"run": runs[name]["id"]})
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text
    assert "script-src 'self'" in answer.headers["content-security-policy"]


def test_a_foreign_name_for_this_machine_is_refused(client):
    assert client.get("/", headers={"host": "evil.example:80"}).status_code == 400
    assert client.get("/runs", headers={"host": "127.0.0.1.evil.example"}).status_code == 400
    assert client.get("/runs", headers={"host": "[::1]:80"}).status_code == 200
    assert client.get("/", headers={"host": "localhost:1234"}).status_code == 200


def test_with_a_token_nobody_else_sees_anything(folder):
    client = Client(application(RunIndex(folder), token="secret"), "http://elsewhere:80")
    for address in ("/", "/runs", "/?token=wrong", "/assets/report.js"):
        assert client.get(address).status_code == 401
    assert client.get("/?token=secret").status_code == 200  # by a redirect, with a cookie
    assert "token" not in str(client.get("/?token=secret").url)
    assert client.get("/runs").status_code == 200


def test_two_servers_on_one_host_do_not_disturb_each_other_and_never_see_the_others_token(folder):
    first = Client(application(RunIndex(folder), token="secret1"), "http://elsewhere:8001")
    assert first.get("/?token=secret1").status_code == 200
    # A browser keeps one jar for all ports of a host.
    second = Client(application(RunIndex(folder), token="secret2"), "http://elsewhere:8002", cookies=first.cookies)
    assert second.get("/runs").status_code == 401
    assert second.get("/?token=secret2").status_code == 200
    first.cookies = second.cookies
    assert first.get("/runs").status_code == 200
    assert second.get("/runs").status_code == 200
    assert len(second.cookies) == 2
    assert not any("secret" in f"{name}{value}" for name, value in second.cookies.items())


def test_a_cookie_that_another_server_received_is_of_no_use_to_it(folder):
    app = application(RunIndex(folder), token="secret")
    browser = Client(app, "http://elsewhere:80", address="10.0.0.7")
    assert browser.get("/?token=secret").status_code == 200
    thief = Client(app, "http://elsewhere:80", address="127.0.0.1", cookies=browser.cookies)
    assert thief.get("/runs").status_code == 401
    assert browser.get("/runs").status_code == 200


DEEP = "[" * 50_000 + "]" * 50_000


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE session SET heartbeat = 'yesterday'",
        "UPDATE session SET config = 'null'",
        f"UPDATE session SET config = '{DEEP}'",
        f"UPDATE layer SET shape = '{DEEP}'",
        "UPDATE layer SET shape = 'null'",
        "UPDATE quantity SET name = x'00ff' WHERE id = 3",
        "UPDATE measurement SET numbers = zeroblob(length(numbers))",
        "DROP TABLE measurement",
    ],
    ids=lambda change: change[:45],
)
def test_a_run_that_makes_no_sense_is_a_sentence_everywhere_and_the_list_goes_on(client, folder, change):
    make.run_at(folder / "odd", make.healthy(**make.SMALL))
    id = listed(client)["odd"]["id"]
    with closing(sqlite3.connect(folder / "odd" / "run.sqlite", isolation_level=None)) as connection:
        connection.execute(change)
    runs = listed(client)
    assert runs["first"]["status"] == "finished"
    assert runs["odd"]["problem"] or "measurement" in change  # the list does not read what samples hold
    answer = client.get("/data", params={"run": id})
    assert answer.status_code == 409
    assert answer.json()["error"].endswith(".")
    asked = {"run": id, "layer": "stem.weight", "quantity": "norm", "step": 0}
    assert client.get("/distribution", params=asked).status_code == 409


def test_an_error_that_nobody_thought_of_is_a_sentence_too(client, folder, monkeypatch):
    def fail(*_, **__):
        raise AttributeError("'NoneType' object has no attribute 'get'")

    id = listed(client)["first"]["id"]
    monkeypatch.setattr(feeds, "gather_run", fail)
    answer = client.get("/data", params={"run": id})
    assert answer.status_code == 409
    assert answer.json()["error"].startswith("This run cannot be shown: AttributeError")
    monkeypatch.setattr(index, "open_run", fail)
    (folder / "first" / "run.sqlite").touch()
    assert "AttributeError" in listed(client)["first"]["problem"]


def test_a_page_is_sent_again_only_if_the_run_has_grown(client, folder, monkeypatch):
    monkeypatch.setattr(feeds, "REST", 0)
    with make.writer(folder / "now", make.healthy(**make.SMALL)) as writer:
        everything = list(make.samples(make.healthy(**make.SMALL)))
        put(writer, everything[:20])
        id = listed(client)["now"]["id"]
        first = client.get("/data", params={"run": id})
        known = {"If-None-Match": first.headers["etag"]}
        assert client.get("/data", params={"run": id}, headers=known).status_code == 304
        put(writer, everything[20:23])
        second = client.get("/data", params={"run": id}, headers=known)
        assert second.json()["runs"][0]["steps"] == list(range(0, 230, 10))
        writer.put_scalars([(221, {"loss": 1.0, **{f"other{i}": 1.0 for i in range(6)}})])
        assert writer.flush()
        third = client.get("/data", params={"run": id}, headers={"If-None-Match": second.headers["etag"]})
        # No more than the page draws.
        assert list(third.json()["runs"][0]["scalars"]) == ["loss", "other0", "other1", "other2"]
    ended = client.get("/data", params={"run": id}, headers={"If-None-Match": third.headers["etag"]})
    assert ended.json()["runs"][0]["status"] == "finished"


def test_building_a_page_takes_at_most_a_tenth_of_the_time(folder, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with make.writer(folder / "now", make.healthy(**make.SMALL)) as writer:
        samples = list(make.samples(make.healthy(**make.SMALL)))
        put(writer, samples[:10])
        feed = Feed("id", "now", folder / "now")
        page = LivePage([feed])
        whole = page._report

        def slow():
            now[0] += 2
            return whole()

        monkeypatch.setattr(page, "_report", slow)
        first, _ = page.read()
        put(writer, samples[10:11])
        now[0] = 19.9
        assert page.read()[0] == first
        now[0] = 20.1
        assert page.read()[0] != first
    feed.close()


def test_the_series_of_a_layer_are_those_of_the_store(client, folder):
    id = listed(client)["first"]["id"]
    assert client.get("/data", params={"run": id}).json()["runs"][0]["layers"][0]["series"] == {}
    series = client.get("/layer", params={"run": id, "layer": "stem.weight"}).json()
    with open_run(folder / "first") as run:
        assert series["norm.rms"] == pytest.approx(run.series("stem.weight", "norm", "rms"), rel=1e-4)
    assert client.get("/layer", params={"run": id, "layer": "nothing"}).json() is None
    assert client.get("/layer").status_code == 400


def put(writer, samples):
    for step, layers in samples:
        writer.put(Sample(step, time.time(), dict(enumerate(layers))))
    assert writer.flush()


def test_a_long_run_is_thinned_and_a_resumed_one_is_read_again(folder, monkeypatch):
    monkeypatch.setattr(feeds, "MAX_SAMPLES", 16)
    story = make.healthy(**make.SMALL)
    with make.writer(folder / "now", story) as writer:
        samples = list(make.samples(story))
        put(writer, samples[:14])
        feed = Feed("id", "now", folder / "now")
        assert len(feed.data(None).steps) == 14
        put(writer, samples[14:20])  # more than are shown: every second one from here on
        run = feed.data(None)
        assert (run.stride, run.steps.tolist()) == (2, list(range(0, 200, 20)))
        before = run.series["angular_update.mean.q50"][2]
        again = list(make.samples(story, seed=1))
        put(writer, [again[4]])  # measured again: the run was resumed
        run = feed.data(None)
        assert run.total == 20
        assert run.series["angular_update.mean.q50"][2] != before
    feed.close()


def test_many_viewers_of_a_page_get_one_text(folder, monkeypatch):
    feed = Feed("id", "first", folder / "first")
    page = LivePage([feed])
    built = []
    whole = page._report
    monkeypatch.setattr(page, "_report", lambda: built.append(1) or whole())
    found: list = []
    threads = [threading.Thread(target=lambda: found.append(page.read())) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert len({id(text) for _, text in found}) == 1
    feed.close()


def test_a_run_that_has_only_begun_is_waited_for(client, folder):
    with make.writer(folder / "now", make.healthy(**make.SMALL)) as writer:
        writer.flush()
        id = listed(client)["now"]["id"]
        assert "no samples yet" in client.get("/data", params={"run": id}).json()["error"]
        put(writer, list(make.samples(make.healthy(**make.SMALL)))[:1])
        assert client.get("/data", params={"run": id}).status_code == 200


def test_the_list_has_the_head_of_every_run(client, folder):
    make.log_at(folder / "logged")
    run = listed(client)["logged"]
    assert run["settings"] == "AdamW, learning rate 0.01, weight decay 0.5"
    assert float(run["loss"]) == pytest.approx(make.loss_at(280), rel=0.1)
    assert run["run_length"] == "1.2 memories"


def test_runs_that_share_some_layers_are_compared_on_these_and_grow_together(client, folder):
    story = make.healthy(**{**make.SMALL, "names": ("stem.parametrizations.weight.original", "else.weight")})
    with make.writer(folder / "other", story) as writer:
        samples = list(make.samples(story))
        put(writer, samples[:10])
        ids = [listed(client)[name]["id"] for name in ("first", "other")]
        data = client.get("/data", params={"run": ids}).json()
        assert [[layer["name"] for layer in run["layers"]] for run in data["runs"]] == [["stem.weight"]] * 2
        assert "else (other)" in data["left_out"]
        series = client.get("/layer", params={"run": ids[1], "layer": "stem.weight"}).json()
        assert len(series["norm.rms"]) == 10
        found = {"run": ids[1], "layer": "stem.weight", "quantity": "norm", "step": 0}
        assert client.get("/distribution", params=found).json() is not None


def test_runs_of_different_models_are_not_compared(client, folder):
    make.run_at(folder / "other", make.healthy(**{**make.SMALL, "names": ("else.weight",)}))
    ids = [one["id"] for one in client.get("/runs").json()]
    answer = client.get("/data", params={"run": ids})
    assert answer.status_code == 409
    assert "no layer in common" in answer.json()["error"]


def test_a_distribution_is_that_of_the_store(client, folder):
    id = listed(client)["first"]["id"]
    asked = {"run": id, "layer": "stem.weight", "quantity": "norm", "step": 120}
    found = client.get("/distribution", params=asked).json()
    with open_run(folder / "first") as run:
        assert sum(found["counts"]) == run.histogram("stem.weight", "norm", 120).sum() == 8
        assert (found["least_id"], found["most_id"]) == run.extremes("stem.weight", "norm", 120)
    assert client.get("/distribution", params={**asked, "layer": "nothing"}).json() is None
    assert client.get("/distribution", params={**asked, "step": "121"}).json() is None
    assert client.get("/distribution", params={**asked, "step": "x"}).status_code == 400


def test_watching_changes_nothing_in_the_directory(client, folder):
    def files():
        return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.suffix == ".sqlite"}

    before = files()
    id = listed(client)["first"]["id"]
    client.get("/data", params={"run": id})
    feed = Feed("id", "x", folder / "first")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        feed._refresh()._source.connection.execute("DELETE FROM sample")
    assert files() == before


def test_feeds_that_nobody_looks_at_are_closed(folder, monkeypatch):
    monkeypatch.setattr("gyroscope.live.server.IDLE", -1.0)
    client = Client(application(RunIndex(folder)))
    id = listed(client)["first"]["id"]
    client.get("/data", params={"run": id})
    assert listed(client)
    assert client.get("/data", params={"run": id}).status_code == 200  # opened again


def start(folder, *options):
    command = [sys.executable, "-m", "gyroscope.cli", "watch", str(folder), "--no-browser", *options]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    address = server.stdout.readline().split(" at ")[1].split()[0]
    return server, address


def test_ctrl_c_ends_the_server_at_once_even_with_a_viewer(folder):
    server, address = start(folder)
    with urllib.request.urlopen(address + "runs", timeout=20) as answer:
        id = json.load(answer)[0]["id"]
    with urllib.request.urlopen(f"{address}data?run={id}", timeout=20) as data:
        assert data.read(1) == b"{"
        server.send_signal(signal.SIGINT)
        begun = time.monotonic()
        printed, said = server.communicate(timeout=20)
    assert (server.returncode, printed, said) == (0, "", "")
    assert time.monotonic() - begun < 5


def test_another_address_needs_the_token_that_is_printed(folder):
    server, address = start(folder, "--host", "0.0.0.0")
    try:
        port, token = address.split(":")[2].split("/?token=")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/runs", timeout=20)
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/runs", headers={"Cookie": f"gyroscope={token}"})
        with pytest.raises(urllib.error.HTTPError, match="401"):  # the token itself is no cookie
            urllib.request.urlopen(asked, timeout=20)
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(f"http://127.0.0.1:{port}/runs?token={token}", timeout=20) as answer:
            assert json.load(answer)[0]["name"] == "first"
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=20)


def test_a_port_that_is_taken_and_a_directory_that_is_none_are_sentences(folder, capsys):
    server, address = start(folder)
    port = address.split(":")[2].rstrip("/")
    try:
        assert main(["watch", str(folder), "--no-browser", "--port", port]) == 2
        assert f"port {port}" in capsys.readouterr().err
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=20)
    assert main(["watch", str(folder / "nothing"), "--no-browser"]) == 2
    assert "there is no directory" in capsys.readouterr().err


def test_a_sentence_reaches_a_page_as_it_is(folder):
    error = RunError('"quoted" & <b>bold</b>')
    assert json.loads(dumps({"problem": str(error)})) == {"problem": str(error)}
    assert os.sep not in RunIndex(folder).name(folder / "first")
