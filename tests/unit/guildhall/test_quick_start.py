"""Commands start fast, because modules and logs are loaded on use. On use, nothing is missing."""

from __future__ import annotations

import subprocess
import sys

from guildhall import quick_start
from tests.support.terminal import environment

START = "from guildhall import quick_start; quick_start.load_modules_late(); import sys, os\n"


def python(program: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", START + program], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 0, process.stderr
    return process.stdout + process.stderr


def test_a_late_module_runs_at_its_first_use() -> None:
    program = "import sqlparse, logging.config; early = 'sqlparse.engine' in sys.modules\n"
    program += "print(early, sqlparse.split('select 1; select 2'), callable(logging.config.dictConfig))"
    assert python(program) == "False ['select 1;', 'select 2'] True\n"


def test_asyncio_with_tls_works_although_its_modules_are_late() -> None:
    program = "import asyncio, ssl, shutil, tempfile\n"
    program += "async def main(): return ssl.create_default_context() and asyncio.sslproto.SSLProtocol.__name__\n"
    program += "print(asyncio.run(main()), os.path.isdir(tempfile.gettempdir()), bool(shutil.which('sh')))"
    assert python(program) == "SSLProtocol True True\n"


def test_all_late_modules_are_modules_of_this_python() -> None:
    program = f"for name in {quick_start.LATE_MODULES!r}:\n"
    program += "    before, _, after = type(sys.modules[name]).__name__, hasattr(sys.modules[name], 'nothing'), "
    program += "type(sys.modules[name]).__name__\n    print(before, after)"
    assert python(program) == "LateModule module\n" * len(quick_start.LATE_MODULES)


def test_two_threads_can_use_a_late_module_at_the_same_time() -> None:
    program = "import sqlparse, threading\nresults = []\n"
    program += "threads = [threading.Thread(target=lambda: results.append(sqlparse.split('a;b'))) for _ in range(8)]\n"
    program += "[thread.start() for thread in threads]; [thread.join() for thread in threads]; print(len(results))"
    assert python(program) == "8\n"


def test_the_first_log_record_is_written_in_the_format_of_the_hall() -> None:
    program = "os.environ['GUILD_HALL_DATA_DIR'] = '/nowhere'\nfrom guildhall import data_folder\n"
    program += "data_folder.is_created = False\nquick_start.load_django()\nimport logging\n"
    program += "print('django.views.debug' in sys.modules)\n"
    program += "logging.getLogger('guildhall.runtime').info('first\\x1b')\n"
    program += "logging.getLogger('guildhall.runtime').debug('hidden')\nlogging.getLogger('other').info('hidden')"
    output = python(program)
    assert output.startswith("False\n")
    assert "runtime        | first\\x1b" in output
    assert "hidden" not in output


def test_the_web_is_not_loaded() -> None:
    program = "os.environ['GUILD_HALL_DATA_DIR'] = '/nowhere'\nfrom guildhall import data_folder\n"
    program += "data_folder.is_created = False\nquick_start.load_django()\n"
    program += (
        "print([name for name in ('rest_framework', 'django.contrib.admin', 'jsonschema') if name in sys.modules])"
    )
    assert python(program) == "[]\n"
