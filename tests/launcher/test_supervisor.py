"""Ends of launches that no signal to the launcher brought about."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from automap_launch.errors import WorkerError
from automap_launch.launcher.supervisor import LaunchResult, launch
from tests.launcher.harness import children, descriptors, is_alive, launcher_config, make_room, nothing_left_of


def test_clean_end(tmp_path: Path) -> None:
    room = make_room(tmp_path, "print('hello from', rank)\nprint('an error line', file=sys.stderr)", processes=3)
    result = room.launch()
    assert result.exit_code == 0
    assert result.failure is None
    assert not result.interrupted
    assert result.attempts == 1
    assert result.started < result.ended
    for rank in range(3):
        assert room.log(rank) == f"hello from {rank}\nan error line\n"
    assert room.terminal.getvalue() == room.log(0), "the terminal shows rank 0's output, and nothing else"


def test_a_crash_stops_the_others_and_is_shown(tmp_path: Path) -> None:
    room = make_room(
        tmp_path,
        """
        if rank == 1:
            wait_for("up")
            fail("ValueError: bad batch", 1, trace="Traceback of the script")
        touch("up")
        time.sleep(60)
        """,
        processes=2,
    )
    started = time.monotonic()
    result = room.launch()
    assert time.monotonic() - started < 10
    assert result.exit_code == 1
    assert result.failure is not None
    assert result.failure.error() == {
        "kind": "script",
        "message": "ValueError: bad batch",
        "rank": 1,
        "host": "here",
        "exit_code": 1,
        "signal": None,
        "file": "train.py",
        "line": 7,
        "traceback_path": "logs/rank_1.log",
    }
    shown = room.terminal.getvalue()
    assert "\nTraceback of the script\n" in shown
    assert "rank 1 on here: ValueError: bad batch at train.py:7 (exit code 1)" in shown
    assert str(room.folder.rank_log(1)) in shown
    assert nothing_left_of(room.wait_for("up"))


def test_the_end_of_the_log_stands_in_for_a_traceback(tmp_path: Path) -> None:
    room = make_room(
        tmp_path,
        """
        if rank == 1:
            print("\\n".join(f"line {i}" for i in range(100)))
            print("F1129 native check failed")
            os._exit(70)
        time.sleep(60)
        """,
        processes=2,
    )
    result = room.launch()
    assert result.exit_code == 70
    assert "F1129 native check failed" in room.terminal.getvalue()
    assert "line 99\n" in room.terminal.getvalue()
    assert "line 10\n" not in room.terminal.getvalue()


def test_exit_code_of_the_script_without_the_noise_of_a_crash(tmp_path: Path) -> None:
    room = make_room(tmp_path, "print('bye')\nfail('sys.exit(3)', 3, trace='')")
    result = room.launch()
    assert result.exit_code == 3
    assert result.failure is not None
    assert result.failure.kind == "script"
    assert room.terminal.getvalue() == "bye\nautomap-launch: rank 0 on here: sys.exit(3) at train.py:7 (exit code 3)\n"


@pytest.mark.parametrize(("name", "code"), [("SIGKILL", 137), ("SIGSEGV", 139)])
def test_death_by_signal_has_a_name(tmp_path: Path, name: str, code: int) -> None:
    room = make_room(
        tmp_path,
        f"""
        if rank == 1:
            os.kill(os.getpid(), signal.{name})
        time.sleep(60)
        """,
        processes=2,
    )
    result = room.launch()
    assert result.exit_code == code
    assert result.failure is not None
    assert (result.failure.kind, result.failure.rank, result.failure.signal) == ("worker", 1, name)
    assert f"rank 1 on {result.failure.host}: killed by {name} (exit code {code})" in room.terminal.getvalue()
    if name == "SIGKILL":
        assert "memory" in room.terminal.getvalue()
    else:
        assert "Current thread" in room.log(1), "Python's fault handler has left a stack"


def test_the_cause_is_found_when_its_consequence_is_seen_first(tmp_path: Path) -> None:
    room = make_room(
        tmp_path,
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # rank 1 must live on to say what happened
        if rank == 0:
            wait_for("failed")
            fail("JaxRuntimeError: UNAVAILABLE: Gloo all-reduce failed: Connection closed by peer", 1)
        at = time.time()
        touch("failed")
        time.sleep(0.5)
        fail("ZeroDivisionError: division by zero", 9, at=at)
        """,
        processes=2,
    )
    result = room.launch()
    assert result.exit_code == 9
    assert result.failure is not None
    assert (result.failure.rank, result.failure.message) == (1, "ZeroDivisionError: division by zero")


def test_sigkill_after_the_grace_period_only(tmp_path: Path) -> None:
    room = make_room(
        tmp_path,
        """
        if rank == 1:
            wait_for("ignoring"); wait_for("saving")
            os._exit(5)
        if rank == 2:  # saves its checkpoint in time
            def save(*_):
                time.sleep(0.3)
                touch("saved")
                os._exit(0)
            signal.signal(signal.SIGTERM, save)
            touch("saving")
        else:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            touch("ignoring")
        time.sleep(60)
        """,
        processes=3,
    )
    started = time.monotonic()
    result = room.launch(grace_period="1s")
    assert 1.0 <= time.monotonic() - started < 8
    assert result.exit_code == 5
    assert (tmp_path / "saved").exists()
    assert "killing what is left of rank 0\n" in room.terminal.getvalue()
    assert nothing_left_of(room.wait_for("ignoring", "saving"))


def test_grandchildren_are_stopped_too(tmp_path: Path) -> None:
    room = make_room(
        tmp_path,
        """
        if rank == 0:
            child = subprocess.Popen(["sleep", "60"])
            own_group = subprocess.Popen(["sleep", "60"], process_group=0)
            (run_dir / "pids").write_text(f"{child.pid} {own_group.pid}")
            touch("up")
            time.sleep(60)
        wait_for("up")
        os._exit(1)
        """,
        processes=2,
    )
    started = time.monotonic()
    assert room.launch(grace_period="10s").exit_code == 1
    assert time.monotonic() - started < 8, "SIGTERM reached them all"
    for pid in (tmp_path / "pids").read_text().split():
        assert not is_alive(int(pid))


def test_background_processes_may_finish_after_a_clean_end(tmp_path: Path) -> None:
    room = make_room(
        tmp_path,
        f"""
        subprocess.Popen([sys.executable, "-c", '''
        import time, pathlib
        time.sleep(0.5)
        pathlib.Path("{tmp_path}/uploaded").touch()
        '''.replace(chr(10) + " " * 8, chr(10))])
        stuck = subprocess.Popen(["sleep", "60"]) if rank == 1 else None
        (run_dir / f"stuck_{{rank}}").write_text(str(stuck.pid if stuck else 0))
        """,
        processes=2,
    )
    result = room.launch(grace_period="2s")
    assert result.exit_code == 0
    assert result.failure is None
    assert (tmp_path / "uploaded").exists()
    assert not is_alive(int((tmp_path / "stuck_1").read_text()))


def test_a_rank_that_is_done_does_not_hurry_the_others(tmp_path: Path) -> None:
    room = make_room(tmp_path, "time.sleep(1 if rank else 0)\nprint('done')", processes=2)
    assert room.launch(grace_period="0s").exit_code == 0
    assert room.log(1) == "done\n"


def test_a_suspended_rank_is_the_cause_of_the_others_abort(tmp_path: Path) -> None:
    room = make_room(
        tmp_path,
        """
        if rank == 1:
            touch("up")
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(60)
        wait_for("up")
        time.sleep(0.3)
        os.abort()
        """,
        processes=2,
    )
    result = room.launch()
    assert result.exit_code == 134
    assert result.failure is not None
    assert result.failure.rank == 1
    assert "suspended" in result.failure.message
    assert nothing_left_of(room.wait_for("up"))


def test_restarts(tmp_path: Path) -> None:
    room = make_room(
        tmp_path,
        """
        print("attempt", attempt)
        if rank == 0:
            event(event="ready", attempt=attempt)
            (run_dir / f"port_{attempt}").write_text(os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"])
        wait_for(f"port_{attempt}")
        spec = json.loads(Path(sys.argv[1]).read_text())
        assert spec["attempt"] == attempt
        assert spec["coordinator"] == os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]
        if attempt < 2:
            fail(f"sys.exit({attempt + 1})", attempt + 1, trace="")
        """,
        processes=2,
    )
    result = room.launch(max_restarts=3)
    assert result.exit_code == 0
    assert result.failure is None
    assert result.attempts == 3
    assert [room.log(0, attempt) for attempt in range(3)] == [f"attempt {a}\n" for a in range(3)]
    assert [e["attempt"] for e in room.events] == [0, 1, 2]
    ports = {(tmp_path / f"port_{attempt}").read_text() for attempt in range(3)}
    assert len(ports) == 3
    assert "restart 2 of 3" in room.terminal.getvalue()


def test_restarts_come_to_an_end(tmp_path: Path) -> None:
    room = make_room(tmp_path, "print('no'); os._exit(attempt + 4)")
    result = room.launch(max_restarts=1)
    assert (result.exit_code, result.attempts) == (5, 2)
    assert result.failure is not None
    assert result.failure.traceback_path == "logs/rank_0.attempt_1.log"


def test_a_refused_plan_is_not_tried_again(tmp_path: Path) -> None:
    room = make_room(tmp_path, "fail('PlanError: another script', 6, kind='plan')")
    result = room.launch(max_restarts=3)
    assert (result.exit_code, result.attempts) == (6, 1)


def test_workers_that_never_meet(tmp_path: Path) -> None:
    room = make_room(tmp_path, "print('importing'); time.sleep(60)", processes=2, start_timeout=0.5)
    result = room.launch()
    assert result.exit_code == 1
    assert result.failure is not None
    assert result.failure.kind == "worker"
    assert result.failure.rank is None
    assert "the 2 workers had not met after 500 ms" in room.terminal.getvalue()


def test_the_start_timeout_ends_with_the_first_event(tmp_path: Path) -> None:
    room = make_room(tmp_path, "event(event='ready'); time.sleep(1.5)", start_timeout=0.9)
    assert room.launch().exit_code == 0


def test_events_come_in_order_and_all_before_the_end(tmp_path: Path) -> None:
    room = make_room(
        tmp_path,
        """
        for i in range(2000):
            event(event="step", step=i)
        os.write(int(os.environ["AUTOMAP_FEED_FD"]), b'not json\\n[1]\\n\\n{"event": "end"}\\n{"event": "cut')
        """,
    )

    def slow(record: dict[str, object]) -> None:
        time.sleep(0.0002)
        room.events.append(record)

    assert room.launch(slow).exit_code == 0
    assert room.events == [{"event": "step", "step": i} for i in range(2000)] + [{"event": "end"}]
    assert "not json" in room.terminal.getvalue()


def test_only_rank_0_has_a_feed(tmp_path: Path) -> None:
    room = make_room(tmp_path, "print('AUTOMAP_FEED_FD' in os.environ)", processes=2)
    room.launch()
    assert (room.log(0), room.log(1)) == ("True\n", "False\n")


def test_a_failing_event_handler_does_not_end_training(tmp_path: Path) -> None:
    room = make_room(tmp_path, "event(step=1); event(step=2); print('trained')")

    def broken(record: dict[str, object]) -> None:
        room.events.append(record)
        raise KeyError("no such run")

    assert room.launch(broken).exit_code == 0
    assert len(room.events) == 2
    assert room.terminal.getvalue().count("an event of rank 0 was lost: KeyError: 'no such run'") == 1


def test_environment_of_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SERVICE", "3-1234-tcp-localhost-5")
    monkeypatch.setenv("MINE", "inherited")
    room = make_room(
        tmp_path,
        """
        names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR AUTOMAP_RESTART_COUNT AUTOMAP_RUN_DIR"
        print(json.dumps({name: os.environ[name] for name in names.split() + ["MINE", "EXTRA"]}))
        assert "WANDB_SERVICE" not in os.environ
        assert int(os.environ["MASTER_PORT"]) > 0
        """,
        processes=2,
    )
    assert room.launch(env={"EXTRA": "7", "MINE": "own"}).exit_code == 0
    assert json.loads(room.log(1)) == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "AUTOMAP_RESTART_COUNT": "0",
        "AUTOMAP_RUN_DIR": str(tmp_path),
        "MINE": "own",
        "EXTRA": "7",
    }


def test_launch_outside_the_main_thread(tmp_path: Path) -> None:
    room = make_room(tmp_path, "print('hi'); os._exit(4)")
    results: list[LaunchResult] = []
    thread = threading.Thread(target=lambda: results.append(room.launch()))
    thread.start()
    thread.join(20)
    assert [r.exit_code for r in results] == [4]


def test_launch_leaves_no_trace_in_the_launcher(tmp_path: Path) -> None:
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)]
    room = make_room(tmp_path, "event(step=1); os._exit(rank)", processes=2)
    room.launch()
    threads, files, processes = threading.active_count(), descriptors(), children()
    room.launch(max_restarts=2)
    assert threading.active_count() == threads
    assert descriptors() == files
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)] == handlers
    assert children() == processes  # not even a zombie is left


def test_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    room = make_room(tmp_path, "")
    with pytest.raises(WorkerError, match=r"could not be started.*no_such_python"):
        launch(room.spec, launcher_config(), room.folder, room.events.append, sys.stdout, command=["/no_such_python"])
