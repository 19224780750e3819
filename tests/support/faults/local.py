"""Faults of servers that the hall starts. `<port>` is the port of another program."""

from __future__ import annotations

from tests.support.faults import Fault

ANSWER = (
    '{"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {}}}'
)
UNREACHABLE = "http://127.0.0.1:9"  # discard, where nothing listens

SPEAKING = {
    "banner_on_stdout": Fault(
        "An HTTP server, python3 -u -m http.server, with the transport stdio.",
        {"command": "python3", "args": ["-u", "-m", "http.server", "0", "--bind", "127.0.0.1"], "start_timeout": 2},
    ),
    "prompt_on_stdout": Fault(
        "A Python script that asks for a key with input().",
        {"command": "python3", "args": ["server.py"], "start_timeout": 2},
        {"server.py": 'key = input("Enter your API key: ")\nimport time\ntime.sleep(60)\n'},
    ),
    "log_lines_on_stdout": Fault(
        "A Python script that logs with print(), and writes its answer as JSON with indentation.",
        {"command": "python3", "args": ["-u", "server.py"], "start_timeout": 2},
        {
            "server.py": "import json, sys\nprint('INFO loading the model')\nprint('INFO ready')\n"
            f"sys.stdin.readline()\nprint(json.dumps(json.loads('''{ANSWER}'''), indent=2))\nsys.stdin.read()\n"
        },
    ),
    "answer_without_newline": Fault(
        "A script of Node.js that writes its answer without a newline.",
        {"command": "node", "args": ["server.js"], "start_timeout": 2},
        {"server.js": f"process.stdin.on('data', () => process.stdout.write('{ANSWER}'));\n"},
    ),
    "content_length_framing": Fault(
        "A Python script that frames its messages with Content-Length, as language servers do.",
        {"command": "python3", "args": ["-u", "server.py"], "start_timeout": 2},
        {
            "server.py": f"import sys\nsys.stdin.readline()\ntext = '''{ANSWER}'''\n"
            "sys.stdout.write(f'Content-Length: {len(text)}\\r\\n\\r\\n{text}')\nsys.stdout.flush()\nsys.stdin.read()\n"
        },
    ),
    "silent_on_stdio": Fault(
        "A Python script that reads stdin and writes nothing.",
        {"command": "python3", "args": ["server.py"], "start_timeout": 2},
        {"server.py": "import sys\nsys.stdin.read()\n"},
    ),
    "stdio_server_over_http": Fault(
        "A Python script that serves stdin, with the transport http. Its stdin is empty, so it ends.",
        {"transport": "http", "command": "python3", "args": ["server.py"]},
        {"server.py": "import sys\nfor line in sys.stdin:\n    pass\n"},
    ),
    "ends_at_once": Fault("The command true, which ends at once.", {"command": "true"}),
    "port_ignored": Fault(
        "python3 -m http.server without ${PORT} in its args, so it listens on another port.",
        {"transport": "http", "command": "python3", "args": ["-m", "http.server", "<free>"], "start_timeout": 3},
    ),
    "never_listens": Fault(
        "The command sleep 60, with the transport http.",
        {"transport": "http", "command": "sleep", "args": ["60"], "start_timeout": 2},
    ),
    "not_mcp_over_http": Fault(
        "python3 -m http.server on its port, which does not accept POST.",
        {"transport": "http", "command": "python3", "args": ["-m", "http.server", "${PORT}", "--bind", "127.0.0.1"]},
    ),
    "port_taken_python": Fault(
        "python3 -m http.server on a port that another program has.",
        {"transport": "http", "command": "python3", "args": ["-m", "http.server", "<port>", "--bind", "127.0.0.1"]},
    ),
    "port_taken_node": Fault(
        "A script of Node.js that listens on a port that another program has.",
        {"transport": "http", "command": "node", "args": ["server.js"]},
        {"server.js": "require('http').createServer().listen(<port>, '127.0.0.1');\n"},
    ),
    "initialize_error": Fault(
        "A Python script that answers initialize with an error.",
        {"command": "python3", "args": ["server.py"]},
        {
            "server.py": "import json, sys\nid = json.loads(sys.stdin.readline())['id']\n"
            "print(json.dumps({'jsonrpc': '2.0', 'id': id, 'error': {'code': -32603, 'message': 'No licence'}}), "
            "flush=True)\nsys.stdin.read()\n"
        },
    ),
    "unknown_version": Fault(
        "A Python script that answers initialize with an unknown version of MCP.",
        {"command": "python3", "args": ["server.py"]},
        {
            "server.py": "import json, sys\nid = json.loads(sys.stdin.readline())['id']\n"
            "result = {'protocolVersion': '2019-01-01', 'capabilities': {}, 'serverInfo': {}}\n"
            "print(json.dumps({'jsonrpc': '2.0', 'id': id, 'result': result}), flush=True)\nsys.stdin.read()\n"
        },
    ),
}

COMMANDS = {
    "command_not_found": Fault(
        "The command bun, which is not installed.", {"command": "bun", "args": ["run", "server.ts"]}
    ),
    "uvx_not_found": Fault(
        "The command uvx, which is not on the PATH.",
        {"command": "uvx", "args": ["mcp-server-time"], "env": {"PATH": "/usr/bin:/bin"}},
    ),
    "python_not_found": Fault(
        "The command python on a PATH that has only python3.",
        {"command": "python", "args": ["server.py"], "env": {"PATH": "/usr/bin:/bin"}},
        {"server.py": ""},
    ),
    "python_not_found_over_http": Fault(
        "The command python on a PATH that has only python3, with the transport http.",
        {"transport": "http", "command": "python", "args": ["server.py", "${PORT}"], "env": {"PATH": "/usr/bin:/bin"}},
        {"server.py": ""},
    ),
    "script_not_on_path": Fault(
        "The command server.py, which is in the folder of the member but not on the PATH.",
        {"command": "server.py"},
        {"server.py": "#!/usr/bin/env python3\n"},
        executable="server.py",
    ),
    "not_executable": Fault(
        "A script without the permission to execute it.",
        {"command": "./server.py"},
        {"server.py": "#!/usr/bin/env python3\n"},
    ),
    "no_shebang": Fault(
        "An executable script without #! in its first line.",
        {"command": "./server.py"},
        {"server.py": "import sys\n"},
        executable="server.py",
    ),
    "interpreter_missing": Fault(
        "An executable script whose first line names a program that does not exist.",
        {"command": "./server.py"},
        {"server.py": "#!/opt/python3.14/bin/python3\nimport sys\n"},
        executable="server.py",
    ),
    "windows_line_ends": Fault(
        "An executable script with CR and LF at the end of its lines.",
        {"command": "./server.sh"},
        {"server.sh": "#!/bin/sh\r\nexec python3 server.py\r\n"},
        executable="server.sh",
    ),
    "env_interpreter_missing": Fault(
        "An executable script with #!/usr/bin/env and a program that does not exist.",
        {"command": "./server.ts"},
        {"server.ts": "#!/usr/bin/env bun\n"},
        executable="server.ts",
    ),
    "command_not_found_in_sandbox": Fault(
        "The command bun, which is not installed, in a sandbox.",
        {"transport": "http", "command": "bun", "args": ["run", "server.ts"], "sandbox": "on"},
    ),
    "shell_command_not_found": Fault(
        "A script of sh that runs a program that is not installed.",
        {"command": "sh", "args": ["start.sh"]},
        {"start.sh": "deno run server.ts\n"},
    ),
    "docker_daemon_down": Fault(
        "docker run -i --rm mcp/time on a machine where its daemon does not run.",
        {"command": "docker", "args": ["run", "-i", "--rm", "mcp/time"]},
    ),
}

PYTHON = {
    "python_module_not_found": Fault(
        "python3 -m with a module that is not installed.", {"command": "python3", "args": ["-m", "mcp_server_notes"]}
    ),
    "python_import_not_found": Fault(
        "A Python script that imports a module that is not installed.",
        {"command": "python3", "args": ["server.py"]},
        {"server.py": "from fastmcp.server import FastMCP\n"},
    ),
    "python_newer_module": Fault(
        "A Python script that imports tomllib, run by Python 3.10.",
        {"command": "<pythons>/3.10.13/bin/python3", "args": ["server.py"]},
        {"server.py": "import tomllib\n"},
    ),
    "python_newer_name": Fault(
        "A Python script that imports Self from typing, run by Python 3.9.",
        {"command": "<pythons>/3.9.18/bin/python3", "args": ["server.py"]},
        {"server.py": "from typing import Self\n"},
    ),
    "python_newer_syntax": Fault(
        "A Python script with a match statement, run by Python 3.8.",
        {"command": "<pythons>/3.8.18/bin/python3", "args": ["server.py"]},
        {"server.py": "import sys\n\nmatch sys.argv:\n    case _:\n        pass\n"},
    ),
    "python_newer_union": Fault(
        "A Python script with the type int | None, run by Python 3.9.",
        {"command": "<pythons>/3.9.18/bin/python3", "args": ["server.py"]},
        {"server.py": "def find(limit: int | None = None):\n    return limit\n"},
    ),
    "python_two": Fault(
        "A Python script with an f-string, run by Python 2.7.",
        {"command": "<pythons>/2.7.18/bin/python2", "args": ["server.py"]},
        {"server.py": "name = 'hall'\nprint(f'hello {name}')\n"},
    ),
    "python_import_error": Fault(
        "A Python script that imports a name that its module does not have.",
        {"command": "python3", "args": ["server.py"]},
        {"server.py": "from tools import search\n", "tools.py": "def find():\n    pass\n"},
    ),
    "python_syntax_error": Fault(
        "A Python script with a bracket that is not closed.",
        {"command": "python3", "args": ["server.py"]},
        {"server.py": "import sys\n\ndef main(:\n    pass\n"},
    ),
    "python_syntax_error_in_module": Fault(
        "A Python script that imports a file with a fault in its indentation.",
        {"command": "python3", "args": ["src/server.py"]},
        {"src/server.py": "import tools\n", "src/tools.py": "def find():\nreturn 1\n"},
    ),
    "python_file_missing": Fault(
        "python3 with a file that does not exist.", {"command": "python3", "args": ["gone.py"]}
    ),
    "python_key_missing": Fault(
        "A Python script that reads a variable that is not set.",
        {"command": "python3", "args": ["server.py"]},
        {"server.py": "import os\n\nKEY = os.environ['WEATHER_API_KEY']\n"},
    ),
    "python_key_missing_in_words": Fault(
        "A Python script that raises ValueError because a variable is not set.",
        {"command": "python3", "args": ["server.py"]},
        {
            "server.py": "import os\n\nif not os.environ.get('GITHUB_TOKEN'):\n"
            "    raise ValueError('GITHUB_TOKEN environment variable is required')\n"
        },
    ),
    "python_exception": Fault(
        "A Python script that divides by zero.",
        {"command": "python3", "args": ["src/server.py"]},
        {"src/server.py": "def rate(calls, seconds):\n    return calls / seconds\n\nrate(1, 0)\n"},
    ),
    "python_argument_missing": Fault(
        "A Python script with a required argument.",
        {"command": "python3", "args": ["server.py"]},
        {
            "server.py": "import argparse\n\nparser = argparse.ArgumentParser()\n"
            "parser.add_argument('--database', required=True)\nparser.parse_args()\n"
        },
    ),
    "python_library_missing": Fault(
        "A Python script that loads a library of the system that is not installed.",
        {"command": "python3", "args": ["server.py"]},
        {"server.py": "import ctypes\n\nctypes.CDLL('libGL.so.1.9')\n"},
    ),
    "python_database_refused": Fault(
        "A Python script that connects to a database that does not run.",
        {"command": "python3", "args": ["server.py"]},
        {"server.py": "import socket\n\nsocket.create_connection(('127.0.0.1', 9))\n"},
    ),
    "python_certificate": Fault(
        "A Python script that opens an https address with a certificate of an unknown authority.",
        {"command": "python3", "args": ["server.py"]},
        {"server.py": "import urllib.request\n\nurllib.request.urlopen('<tls>')\n"},
    ),
    "python_file_limit": Fault(
        "A Python script that opens many files, with ulimit -n 16.",
        {"command": "sh", "args": ["-c", "ulimit -n 16; exec python3 server.py"]},
        {"server.py": "files = [open('server.py') for _ in range(100)]\n"},
    ),
    "python_memory": Fault(
        "A Python script that needs 2 GB, with ulimit -v 300000.",
        {"command": "sh", "args": ["-c", "ulimit -v 300000; exec python3 server.py"]},
        {"server.py": "data = bytearray(2_000_000_000)\n"},
    ),
    "python_disk_full": Fault(
        "A Python script that writes to /dev/full.",
        {"command": "python3", "args": ["server.py"]},
        {"server.py": "with open('/dev/full', 'w') as file:\n    file.write('x' * 100_000)\n"},
    ),
    "killed": Fault(
        "A script of sh that kills itself with SIGKILL, as the kernel does when memory runs out.",
        {"command": "sh", "args": ["-c", "kill -9 $$"]},
    ),
    "crash_in_library": Fault(
        "A Python script whose C code reads a wrong address.",
        {"command": "python3", "args": ["-c", "import ctypes; ctypes.string_at(0)"]},
    ),
    "sandbox_refuses_file": Fault(
        "A Python script in a sandbox that reads a file outside of its folder.",
        {"command": "python3", "args": ["server.py"], "sandbox": "on"},
        {"server.py": "print(open('<outside>').read())\n"},
    ),
    "folder_not_writable": Fault(
        "A Python script that writes to a folder of the system without the permission.",
        {"command": "python3", "args": ["server.py"], "sandbox": "on"},
        {"server.py": "open('/etc/notes.db', 'w')\n"},
    ),
}

NODE = {
    "node_file_missing": Fault("node with a file that does not exist.", {"command": "node", "args": ["dist/index.js"]}),
    "node_module_not_found": Fault(
        "A script of Node.js that requires a package that is not installed.",
        {"command": "node", "args": ["server.js"]},
        {"server.js": "const express = require('express');\n"},
    ),
    "node_import_not_found": Fault(
        "A module of Node.js that imports a package that is not installed.",
        {"command": "node", "args": ["server.mjs"]},
        {"server.mjs": "import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';\n"},
    ),
    "node_own_file_not_found": Fault(
        "A script of Node.js that requires a file of its own that does not exist.",
        {"command": "node", "args": ["server.js"]},
        {"server.js": "require('./tools');\n"},
    ),
    "node_import_outside_module": Fault(
        'A script of Node.js with import and "type": "commonjs".',
        {"command": "node", "args": ["server.js"]},
        {"server.js": "import fs from 'node:fs';\n", "package.json": '{"type": "commonjs"}\n'},
    ),
    "node_require_in_module": Fault(
        "A module of Node.js with require().",
        {"command": "node", "args": ["server.mjs"]},
        {"server.mjs": "const fs = require('fs');\n"},
    ),
    "node_typescript": Fault(
        "node 20 with a file of TypeScript.",
        {"command": "node", "args": ["server.ts"]},
        {"server.ts": "const name: string = 'hall';\n", "package.json": '{"type": "module"}\n'},
    ),
    "node_too_old": Fault(
        "A script for a newer Node.js, which requires node:sqlite, run by node 20.",
        {"command": "node", "args": ["server.js"]},
        {"server.js": "const { DatabaseSync } = require('node:sqlite');\n"},
    ),
    "node_syntax_error": Fault(
        "A script of Node.js with a bracket that is not closed.",
        {"command": "node", "args": ["server.js"]},
        {"server.js": "function main() {\n  const tools = [1, 2;\n}\n"},
    ),
    "node_exception": Fault(
        "A script of Node.js that reads a property of undefined.",
        {"command": "node", "args": ["server.js"]},
        {"server.js": "const settings = {};\n\nconsole.error(settings.server.port);\n"},
    ),
    "node_key_missing": Fault(
        "A script of Node.js that writes that a variable is missing, and ends.",
        {"command": "node", "args": ["server.js"]},
        {
            "server.js": "if (!process.env.BRAVE_API_KEY) {\n"
            "  console.error('Error: BRAVE_API_KEY environment variable is required');\n  process.exit(1);\n}\n"
        },
    ),
    "node_memory": Fault(
        "A script of Node.js that needs more memory than --max-old-space-size.",
        {"command": "node", "args": ["--max-old-space-size=30", "server.js"]},
        {"server.js": "const rows = [];\nfor (;;) rows.push(new Array(1000).fill({}));\n"},
    ),
    "node_database_refused": Fault(
        "A script of Node.js that connects to a database that does not run.",
        {"command": "node", "args": ["server.js"]},
        {"server.js": "require('net').connect(9, '127.0.0.1');\n"},
    ),
    "node_host_not_found": Fault(
        "A script of Node.js that connects to a host that does not exist.",
        {"command": "node", "args": ["server.js"]},
        {"server.js": "require('net').connect(5432, 'database.invalid');\n"},
    ),
}

# They need the registries of npm and PyPI.
PACKAGES = {
    "npm_not_found": Fault(
        "npx with a package that npm does not have.",
        {"command": "npx", "args": ["-y", "@guild-hall-tests/no-such-server"]},
    ),
    "npm_version_not_found": Fault(
        "npx with a version that its package does not have.", {"command": "npx", "args": ["-y", "cowsay@99.0.0"]}
    ),
    "npm_registry_unreachable": Fault(
        "npx with a registry that does not answer.",
        {
            "command": "npx",
            "args": ["-y", "@modelcontextprotocol/server-everything@9.9.9"],
            "env": {"npm_config_registry": UNREACHABLE, "npm_config_fetch_retries": "0"},
        },
    ),
    "npm_registry_host_not_found": Fault(
        "npx with a registry whose host does not exist.",
        {
            "command": "npx",
            "args": ["-y", "@modelcontextprotocol/server-everything@9.9.9"],
            "env": {"npm_config_registry": "http://registry.invalid", "npm_config_fetch_retries": "0"},
        },
    ),
    "npm_no_program": Fault(
        "npx with a package that has no program.", {"command": "npx", "args": ["-y", "is-number@7.0.0"]}
    ),
    "npx_yes_missing": Fault("npx without -y.", {"command": "npx", "args": ["cowsay@1.6.0"], "start_timeout": 20}),
    "npm_locked_not_found": Fault(
        "npx with a package that npm does not have, and packages locked.",
        {"command": "npx", "args": ["-y", "@guild-hall-tests/no-such-server"], "packages": "locked"},
    ),
    "uv_not_found": Fault(
        "uvx with a package that PyPI does not have.",
        {"command": "<uvx>", "args": ["guild-hall-tests-no-such-server"]},
    ),
    "uv_version_not_found": Fault(
        "uvx with a version that its package does not have.", {"command": "<uvx>", "args": ["six@99.0.0"]}
    ),
    "uv_registry_unreachable": Fault(
        "uvx with an index that does not answer.",
        {
            "command": "<uvx>",
            "args": ["mcp-server-time"],
            "env": {"UV_DEFAULT_INDEX": f"{UNREACHABLE}/simple", "UV_HTTP_RETRIES": "0", "UV_NO_CACHE": "1"},
        },
    ),
    "uv_no_program": Fault("uvx with a package that has no program.", {"command": "<uvx>", "args": ["six"]}),
    "uv_python_not_found": Fault(
        "uvx with a Python that is not installed, and that it may not download.",
        {"command": "<uvx>", "args": ["--python", "3.99", "six"], "env": {"UV_PYTHON_DOWNLOADS": "never"}},
    ),
}

ALL = {**SPEAKING, **COMMANDS, **PYTHON, **NODE, **PACKAGES}
