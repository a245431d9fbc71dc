"""Workers' output: order, bytes, volume, and places that take no more."""

from __future__ import annotations

import io
import os
import re
import threading
import time
from pathlib import Path

import pytest

from automap_launch.launcher import supervisor
from automap_launch.launcher.output import RankLog, TerminalWriter
from tests.launcher.harness import eventually, make_room


def test_a_hundred_thousand_lines(tmp_path: Path) -> None:
    room = make_room(
        tmp_path,
        """
        for i in range(25_000):
            os.write(1 + i % 2, b"line %d\\n" % i * 4)
        """,
        processes=2,
    )
    assert room.launch().exit_code == 0
    expected = "".join(f"line {i}\n" * 4 for i in range(25_000))
    assert room.log(0) == expected
    assert room.log(1) == expected
    assert room.terminal.getvalue() == expected


def test_bytes_are_kept_and_partial_lines_are_shown_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    raw = b"\r 10%\r 20%\xff\x00\xc3"
    room = make_room(
        tmp_path,
        f"""
        sys.stdout.buffer.write({raw!r})
        wait_for("seen")
        sys.stdout.buffer.write(b"\\xa4 end without newline")
        """,
    )
    thread = threading.Thread(target=room.launch)
    thread.start()
    try:
        eventually(lambda: "20%" in room.terminal.getvalue(), "the progress bar is on the terminal")
    finally:
        (tmp_path / "seen").touch()
        thread.join(20)
    assert room.folder.rank_log(0).read_bytes() == raw + b"\xa4 end without newline"
    assert room.terminal.getvalue() == "\r 10%\r 20%\ufffd\x00ä end without newline"


def test_messages_begin_on_a_line_of_their_own() -> None:
    stream = io.StringIO()
    writer = TerminalWriter(stream)
    writer.output(b"loss 1.0")
    writer.say("one\ntwo")
    writer.close(5)
    assert stream.getvalue() == "loss 1.0\nautomap-launch: one\nautomap-launch: two\n"


def test_a_terminal_without_unicode() -> None:
    raw = io.BytesIO()
    writer = TerminalWriter(io.TextIOWrapper(raw, encoding="ascii"))
    writer.output("ä\n".encode())
    writer.close(5)
    assert raw.getvalue() == b"\\xe4\n"


def test_a_closed_terminal_does_not_stop_the_run(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    room = make_room(tmp_path, "for _ in range(100): print('x' * 100_000)\nprint('end')")
    with os.fdopen(write_end, "w") as closed:
        room.terminal = closed  # type: ignore[assignment]
        assert room.launch().exit_code == 0
        with pytest.raises(BrokenPipeError):
            closed.write("y" * 100_000)
    assert room.log(0) == ("x" * 100_000 + "\n") * 100 + "end\n"


def test_a_stuck_terminal_does_not_hold_up_the_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_TERMINAL_SECONDS", 0.5)
    read_end, write_end = os.pipe()
    room = make_room(
        tmp_path,
        """
        if rank == 0:
            print("x" * 200_000)  # more than the pipe takes
            touch("up")
            time.sleep(60)
        wait_for("up")
        os._exit(3)
        """,
        processes=2,
    )
    started = time.monotonic()
    with os.fdopen(write_end, "w") as stuck:
        room.terminal = stuck  # type: ignore[assignment]
        assert room.launch().exit_code == 3
        assert time.monotonic() - started < 20
        drain = threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(read_end, 1 << 16), b"")])
        drain.start()
    drain.join(5)
    os.close(read_end)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_costs_output_and_one_message(tmp_path: Path) -> None:
    room = make_room(tmp_path, "for i in range(100): print(i); time.sleep(0.001)")
    room.folder.logs.mkdir()
    room.folder.rank_log(0).symlink_to("/dev/full")
    assert room.launch().exit_code == 0
    shown = room.terminal.getvalue()
    assert shown.count("No space left on device") == 1
    assert re.search(r"^99$", shown, re.MULTILINE), "the terminal still gets all"


def test_lost_output_is_marked_when_the_disk_has_room_again(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "missing" / "rank_0.log"
    log = RankLog(path, said.append)
    log.write(b"12345")
    log.write(b"678")
    path.parent.mkdir()
    log.write(b"back\n")
    assert path.read_bytes() == b"\n[automap-launch: 8 bytes of output lost here]\nback\n"
    assert len(said) == 1


def test_greetings_of_the_collectives_stay_off_the_terminal() -> None:
    stream = io.StringIO()
    writer = TerminalWriter(stream)
    greeting = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"
    writer.output(f"before\n{greeting}{greeting[:30]}".encode())
    writer.output(f"{greeting[30:]}[Gloo] something else\nafter\n".encode())
    writer.close(5)
    assert stream.getvalue() == "before\n[Gloo] something else\nafter\n"
