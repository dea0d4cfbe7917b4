"""Log records of the engine reach `logging`, and print without any code if requested."""

import logging
import os
import subprocess
import sys
import textwrap

import numpy
import pytest

import layerzero as lz
from layerzero import _native

ROWS = numpy.ones((2, 4), numpy.float32)


def run(code, **environment):
    """Runs a program in its own process; returns what it prints on stderr."""
    program = "import logging, sys, threading, numpy, layerzero as lz\nROWS = numpy.ones((2, 4), numpy.float32)\n"
    done = subprocess.run(
        [sys.executable, "-c", program + textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture
def records():
    """Collects the records of all of our loggers."""
    seen = []

    class Collect(logging.Handler):
        def emit(self, record):
            seen.append(record)

    handler = Collect()
    root = logging.getLogger("layerzero")
    root.addHandler(handler)
    yield seen
    root.removeHandler(handler)
    root.setLevel(logging.NOTSET)
    logging.getLogger("layerzero.select").setLevel(logging.NOTSET)


def test_the_level_of_a_logger_decides_which_records_exist(records):
    lz.which("norm.rms", ROWS)
    logging.getLogger("layerzero.select").setLevel(logging.DEBUG)
    lz.configure({"cache.max_size": 9999})  # Empties the cache.
    lz.ops.norm_rms(ROWS)
    lz.flush_logs()
    # Records of other areas may come from calls of other tests.
    selected = [one for one in records if one.name == "layerzero.select"]
    assert [one.levelname for one in selected] == ["DEBUG"]
    assert selected[0].fields["operation"] == "norm.rms"
    assert selected[0].getMessage().startswith("new decision (operation=norm.rms, kernel=")
    records.clear()
    logging.getLogger("layerzero.select").setLevel(logging.INFO)
    lz.configure({"cache.max_size": 10000})
    lz.ops.norm_rms(ROWS)
    lz.flush_logs()
    assert not any(one.name == "layerzero.select" for one in records)


def test_log_selections_emits_records(records):
    logging.getLogger("layerzero").setLevel(logging.INFO)
    lz.configure(log_selections=True)
    try:
        lz.ops.norm_rms(ROWS)
        lz.flush_logs()
    finally:
        lz.configure(log_selections=False)
    assert any(one.getMessage().startswith("selected (operation=norm.rms") for one in records)


def test_levels_of_areas_cover_every_area():
    assert set(_native.LOG_AREAS) >= {"select", "fallback", "health", "audit", "perfdb", "jit", "config", "worker"}
    environment, settings = _native.requested_log_levels()
    assert environment is None and len(settings) == len(_native.LOG_AREAS)


def test_the_environment_prints_without_code():
    printed = run("lz.ops.norm_rms(ROWS)", LAYERZERO_LOG="info,select=debug")
    assert "layerzero.select DEBUG: new decision (operation=norm.rms, kernel=" in printed
    assert "new decision" not in run("lz.ops.norm_rms(ROWS)", LAYERZERO_LOG="info")


def test_an_invalid_level_is_an_error_of_the_environment():
    code = """
        try:
            lz.ops.norm_rms(ROWS)
        except lz.ConfigurationError as error:
            print(error, file=sys.stderr)
    """
    assert "did you mean `select`?" in run(code, LAYERZERO_LOG="selects=debug")


@pytest.mark.parametrize("environment", [{"LAYERZERO_VERBOSE": "1"}, {}])
def test_verbose_and_log_selections_print(environment):
    settings = "" if environment else "lz.configure(log_selections=True)\n"
    printed = run(settings + "lz.ops.norm_rms(ROWS)", **environment)
    assert "layerzero.select INFO: selected (operation=norm.rms" in printed


def test_configured_logging_gets_each_record_once():
    code = """
        logging.basicConfig(format="mine %(name)s %(message)s")
        lz.ops.norm_rms(ROWS)
    """
    printed = run(code, LAYERZERO_LOG="select=debug")
    assert printed.count("new decision") == 1 and "mine layerzero.select new decision" in printed


def test_a_level_set_in_code_overrides_the_environment():
    code = """
        logging.getLogger("layerzero").setLevel(logging.ERROR)
        lz.ops.norm_rms(ROWS)
    """
    assert run(code, LAYERZERO_LOG="select=debug") == ""


FAILING = """
    @lz.register_kernel(operation="norm.rms", id="mine.norm.rms", priority=100)
    def fail(x, weight=None, **options):
        raise RuntimeError("broken on purpose")
"""


def test_a_fallback_is_a_warning_of_its_logger():
    printed = run(FAILING + "\n    lz.ops.norm_rms(ROWS)\n")
    assert "kernel failed; used fallback (operation=norm.rms, kernel=mine.norm.rms" in printed


def test_records_of_other_threads_and_of_exit_are_delivered():
    # The last call is made by a thread, and the interpreter ends at once.
    code = """
        lz.list_operations()
        thread = threading.Thread(target=lambda: lz.ops.norm_rms(ROWS))
        thread.start()
        thread.join()
    """
    for _ in range(5):
        assert "new decision" in run(code, LAYERZERO_LOG="select=debug")


def test_a_daemon_thread_that_logs_during_shutdown_does_not_crash():
    code = """
        import itertools
        lz.configure(log_selections=True)
        def loop():
            for _ in itertools.count():
                lz.ops.norm_rms(ROWS)
        threading.Thread(target=loop, daemon=True).start()
        lz.ops.norm_rms(ROWS)
    """
    for _ in range(3):
        assert "selected" in run(code)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_logs():
    code = """
        import os, warnings
        warnings.simplefilter("ignore")
        lz.ops.norm_rms(ROWS)
        lz.flush_logs()
        child = os.fork()
        if child == 0:
            lz.ops.activation_silu(ROWS)
            lz.flush_logs()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """
    printed = run(code, LAYERZERO_LOG="select=debug")
    assert "operation=norm.rms" in printed and "operation=activation.silu" in printed


def test_handlers_may_call_the_engine():
    code = """
        class Again(logging.Handler):
            def emit(self, record):
                lz.ops.activation_silu(ROWS)
                print("called", file=sys.stderr)
        logging.getLogger("layerzero").addHandler(Again())
        logging.getLogger("layerzero.select").setLevel(logging.DEBUG)
        lz.ops.norm_rms(ROWS)
    """
    assert "called" in run(code)
