"""What the worker imports while the threads of its members run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

# The main thread is in the middle of an import of `referencing`, a library of the validation, when a member's thread
# begins to check the schemas of its tools.
PROGRAM = """
import os, sys, threading, time
from importlib.machinery import PathFinder

os.environ["DJANGO_SETTINGS_MODULE"] = "guildhall.settings"
from mcp_runtime.runtime import worker

worker.set_up_django()
from mcp_runtime.members import tools

class Delay:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target) if name == "referencing" else None
        if spec:
            create_module = spec.loader.create_module
            spec.loader.create_module = lambda spec: begin.set() or time.sleep(0.5) or create_module(spec)
        return spec

assert "referencing" not in sys.modules
begin = threading.Event()
sys.meta_path.insert(0, Delay)
member = threading.Thread(target=lambda: begin.wait(20) and print("fault:", repr(tools._fault({"type": "object"}))))
member.start()
worker.import_the_rest()
member.join()
"""


def test_the_worker_imports_its_parts_while_a_member_checks_schemas(tmp_path: Path) -> None:
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "GUILD_HALL_DATA_DIR": str(tmp_path)}
    program = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, env=environment
    )
    assert (program.returncode, program.stdout) == (0, "fault: ''\n"), program.stderr


def test_the_tasks_can_be_imported_while_another_thread_imports_celery() -> None:
    """A stop does that if it comes during the start."""
    code = """
import os, sys, threading
os.environ["DJANGO_SETTINGS_MODULE"] = "guildhall.settings"
import django
django.setup()
import mcp_runtime.calls.dispatcher
assert "celery" not in sys.modules
began = threading.Event()

def load():
    began.set()
    import celery

threading.Thread(target=load).start()
began.wait()
import mcp_runtime.runtime.tasks
"""
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr


def test_no_class_that_answers_for_callables_is_made_while_members_start() -> None:
    """While it is made, `isinstance(x, Callable)` raises NameError in all threads, so a member would not start."""
    code = """
import os, sys, uuid
os.environ["DJANGO_SETTINGS_MODULE"] = "guildhall.settings"
from mcp_runtime.runtime import worker
worker.set_up_django()
from collections.abc import Callable
from mcp_runtime.runtime import runtime

class Stage:
    def __init__(self, *_): pass
    def start_members(self): self.known = set(Callable.__subclasses__())
    def end(self, error=None): return 0

class Rest:
    def serve(self, stage):
        own = {each for each in set(Callable.__subclasses__()) - stage.known if "__subclasshook__" in vars(each)}
        print("made meanwhile:", own)

import_the_rest = worker.import_the_rest
worker.import_the_rest = lambda: import_the_rest() and Rest()
worker.take_the_hall = lambda stop: (uuid.uuid4(), None)
runtime.Runtime = Stage
worker.run()
"""
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert process.stdout == "made meanwhile: set()\n", process.stderr
