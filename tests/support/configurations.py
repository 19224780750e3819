"""Configurations as the documentation of each client describes them, and what the hall makes of them.

The tokens are invented, but have the forms of real ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

GITHUB = "ghp_Zk3vQ8wL5nR2xT7yB4mC9dF6hJ1sP0aG"
OPENAI = "sk-proj-7Qx2mN9vKc4LrT8wYb3Zd6Hf"
SLACK = "xoxb-1111111111-2222222222-Qw3rTy5uIo"
FIGMA = "figd_m3Kx9Qp2Lr8Vt5Nz7Wb4"
CONTEXT7 = "ctx7sk-4b8f1c2e-9a7d-4e6f-8b1c-2d3e4f5a6b7c"
BRAVE = "BSA9kLm2nPq4rStU6vWxY8z"


@dataclass(frozen=True)
class Configuration:
    """`members` are the parts of the manifests that matter, by name. `inputs` are the secrets to set by hand."""

    client: str
    title: str
    text: str
    members: dict[str, dict[str, Any]]
    secrets: dict[str, str] = field(default_factory=dict)
    inputs: set[str] = field(default_factory=set)


CLAUDE = [
    Configuration(
        "Claude Desktop",
        "file system and memory",
        """{
          "mcpServers": {
            "filesystem": {
              "command": "npx",
              "args": ["-y", "@modelcontextprotocol/server-filesystem", "/Users/ada/Desktop", "/Users/ada/Downloads"]
            },
            "memory": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory"]}
          }
        }""",
        {
            "filesystem": {
                "command": "npx",
                "args": [
                    *("-y", "@modelcontextprotocol/server-filesystem"),
                    *("/Users/ada/Desktop", "/Users/ada/Downloads"),
                ],
            },
            "memory": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory"]},
        },
    ),
    Configuration(
        "Claude Desktop",
        "a token in env, and other settings beside the servers",
        f"""{{
          "globalShortcut": "",
          "mcpServers": {{
            "github": {{
              "command": "npx",
              "args": ["-y", "@modelcontextprotocol/server-github"],
              "env": {{"GITHUB_PERSONAL_ACCESS_TOKEN": "{GITHUB}"}}
            }}
          }}
        }}""",
        {"github": {"env": {"GITHUB_PERSONAL_ACCESS_TOKEN": "${secret:github-GITHUB_PERSONAL_ACCESS_TOKEN}"}}},
        {"github-GITHUB_PERSONAL_ACCESS_TOKEN": GITHUB},
    ),
    Configuration(
        "Claude Desktop",
        "on Windows",
        r"""{"mcpServers": {"Sequential Thinking": {
          "command": "cmd", "args": ["/c", "npx", "-y", "@modelcontextprotocol/server-sequential-thinking@0.6.2"]
        }}}""",
        {
            "Sequential-Thinking": {
                "command": "npx",
                "args": ["-y", "@modelcontextprotocol/server-sequential-thinking@0.6.2"],
                "version": "0.6.2",
            }
        },
    ),
    Configuration(
        "Claude Desktop",
        "mcp-remote with a header from env",
        """{"mcpServers": {"remote-example": {
          "command": "npx",
          "args": ["mcp-remote", "https://remote.mcp.server/sse", "--header", "Authorization:${AUTH_HEADER}"],
          "env": {"AUTH_HEADER": "Bearer wLq82mZx0vTr5NyK"}
        }}}""",
        {
            "remote-example": {
                "args": [
                    *("mcp-remote", "https://remote.mcp.server/sse"),
                    *("--header", "Authorization:${AUTH_HEADER}"),
                ],
                "env": {"AUTH_HEADER": "${secret:remote-example-AUTH_HEADER}"},
            }
        },
        {"remote-example-AUTH_HEADER": "Bearer wLq82mZx0vTr5NyK"},
    ),
    Configuration(
        "Claude Desktop",
        "a database, whose password is in an address",
        """{"mcpServers": {"postgres": {"command": "npx", "args": [
          "-y", "@modelcontextprotocol/server-postgres", "postgresql://ada:hunter2@db.example:5432/shop"
        ]}}}""",
        {
            "postgres": {
                "args": [
                    *("-y", "@modelcontextprotocol/server-postgres"),
                    "postgresql://ada:${secret:postgres-password}@db.example:5432/shop",
                ]
            }
        },
        {"postgres-password": "hunter2"},
    ),
    Configuration(
        "Claude Code",
        ".mcp.json with variables and defaults",
        """{"mcpServers": {
          "api-server": {
            "type": "http",
            "url": "${API_BASE_URL:-https://api.example.com}/mcp",
            "headers": {"Authorization": "Bearer ${API_KEY}"}
          },
          "db": {
            "type": "stdio", "command": "/opt/db/server", "args": ["--config", "/etc/db.json"],
            "env": {"CACHE_DIR": "${CACHE_DIR:-/tmp/cache}", "DB_PASSWORD": "${DB_PASSWORD}"}
          }
        }}""",
        {
            "api-server": {
                "url": "https://api.example.com/mcp",
                "headers": {"Authorization": "Bearer ${secret:api-server-API_KEY}"},
            },
            "db": {"env": {"CACHE_DIR": "/tmp/cache", "DB_PASSWORD": "${secret:db-DB_PASSWORD}"}},
        },
        inputs={"api-server-API_KEY", "db-DB_PASSWORD"},
    ),
    Configuration(
        "Claude Code",
        "the command for a stdio server",
        f"claude mcp add --transport stdio --env SLACK_BOT_TOKEN={SLACK} --env SLACK_TEAM_ID=T01234567 slack \\\n"
        "  -- npx -y @modelcontextprotocol/server-slack",
        {
            "slack": {
                "command": "npx",
                "args": ["-y", "@modelcontextprotocol/server-slack"],
                "env": {
                    "SLACK_BOT_TOKEN": "${secret:slack-SLACK_BOT_TOKEN}",
                    "SLACK_TEAM_ID": "${secret:slack-SLACK_TEAM_ID}",
                },
            }
        },
        {"slack-SLACK_BOT_TOKEN": SLACK, "slack-SLACK_TEAM_ID": "T01234567"},
    ),
    Configuration(
        "Claude Code",
        "the command for a remote server",
        f'claude mcp add --transport http context7 https://mcp.context7.com/mcp -H "CONTEXT7_API_KEY: {CONTEXT7}"',
        {
            "context7": {
                "url": "https://mcp.context7.com/mcp",
                "headers": {"CONTEXT7_API_KEY": "${secret:context7-CONTEXT7_API_KEY}"},
            }
        },
        {"context7-CONTEXT7_API_KEY": CONTEXT7},
    ),
    Configuration(
        "Claude Code",
        "the command with JSON",
        """claude mcp add-json weather '{"type":"stdio","command":"/opt/weather","args":["--units","metric"]}'""",
        {"weather": {"command": "/opt/weather", "args": ["--units", "metric"]}},
    ),
]
CURSOR = [
    Configuration(
        "Cursor",
        "a remote server with a token from the environment",
        """{"mcpServers": {"linear": {
          "url": "https://mcp.linear.app/mcp", "headers": {"Authorization": "Bearer ${env:LINEAR_API_KEY}"}
        }}}""",
        {"linear": {"headers": {"Authorization": "Bearer ${secret:linear-LINEAR_API_KEY}"}}},
        inputs={"linear-LINEAR_API_KEY"},
    ),
    Configuration(
        "Cursor",
        "a key in an argument, and one in another",
        f"""{{"mcpServers": {{
          "Framelink MCP for Figma": {{
            "command": "npx", "args": ["-y", "figma-developer-mcp", "--figma-api-key={FIGMA}", "--stdio"]
          }},
          "context7": {{"command": "npx", "args": ["-y", "@upstash/context7-mcp", "--api-key", "{CONTEXT7}"]}}
        }}}}""",
        {
            "Framelink-MCP-for-Figma": {
                "displayName": "Framelink MCP for Figma",
                "args": [
                    *("-y", "figma-developer-mcp"),
                    "--figma-api-key=${secret:Framelink-MCP-for-Figma-figma-api-key}",
                    "--stdio",
                ],
            },
            "context7": {"args": ["-y", "@upstash/context7-mcp", "--api-key", "${secret:context7-api-key}"]},
        },
        {"Framelink-MCP-for-Figma-figma-api-key": FIGMA, "context7-api-key": CONTEXT7},
    ),
    Configuration(
        "Cursor",
        "a server of the workspace",
        """{"mcpServers": {"local": {
          "type": "stdio", "command": "python3", "args": ["${workspaceFolder}/tools/server.py"],
          "env": {"API_URL": "https://api.example.com/v1", "LOG_LEVEL": "debug", "MAX_ROWS": 500, "VERBOSE": true}
        }}}""",
        {
            "local": {
                "args": ["${secret:local-workspaceFolder}/tools/server.py"],
                "env": {
                    "API_URL": "https://api.example.com/v1",
                    "LOG_LEVEL": "debug",
                    "MAX_ROWS": "500",
                    "VERBOSE": "true",
                },
            }
        },
        inputs={"local-workspaceFolder"},
    ),
]
WINDSURF = [
    Configuration(
        "Windsurf",
        "serverUrl with a header",
        """{"mcpServers": {"remote-http-mcp": {
          "serverUrl": "https://tools.example.com/mcp", "headers": {"API_KEY": "Bearer ${env:AUTH_TOKEN}"}
        }}}""",
        {
            "remote-http-mcp": {
                "url": "https://tools.example.com/mcp",
                "headers": {"API_KEY": "Bearer ${secret:remote-http-mcp-AUTH_TOKEN}"},
            }
        },
        inputs={"remote-http-mcp-AUTH_TOKEN"},
    ),
    Configuration(
        "Windsurf",
        "a part of the file, with a placeholder",
        """  "brave-search": {
            "command": "npx",
            "args": ["-y", "@brave/brave-search-mcp-server"],
            "env": {"BRAVE_API_KEY": "<YOUR_API_KEY>"},
            "disabled": true,
            "disabledTools": ["brave_local_search"]
          },""",
        {"brave-search": {"env": {"BRAVE_API_KEY": "${secret:brave-search-BRAVE_API_KEY}"}, "enabled": False}},
        inputs={"brave-search-BRAVE_API_KEY"},
    ),
]
VS_CODE = [
    Configuration(
        "VS Code",
        "inputs, comments and trailing commas",
        """// .vscode/mcp.json
        {
          "inputs": [
            {"type": "promptString", "id": "perplexity-key", "description": "Perplexity API key", "password": true},
            {"type": "pickString", "id": "region", "options": ["eu", "us"], "default": "eu"},
          ],
          "servers": {
            /* https://github.com/ppl-ai/modelcontextprotocol */
            "Perplexity": {
              "type": "stdio",
              "command": "npx",
              "args": ["-y", "server-perplexity-ask", "--region", "${input:region}"], // pinned soon
              "env": {"PERPLEXITY_API_KEY": "${input:perplexity-key}",},
            },
          },
        }""",
        {
            "Perplexity": {
                "args": ["-y", "server-perplexity-ask", "--region", "eu"],
                "env": {"PERPLEXITY_API_KEY": "${secret:Perplexity-perplexity-key}"},
            }
        },
        inputs={"Perplexity-perplexity-key"},
    ),
    Configuration(
        "VS Code",
        "a remote server, with a password prompt in a header",
        """{
          "servers": {"github": {
            "type": "http", "url": "https://api.githubcopilot.com/mcp/",
            "headers": {"Authorization": "Bearer ${input:github_token}", "X-MCP-Readonly": "true"}
          }},
          "inputs": [{"type": "promptString", "id": "github_token", "description": "GitHub token", "password": true}]
        }""",
        {
            "github": {
                "url": "https://api.githubcopilot.com/mcp/",
                "headers": {"Authorization": "Bearer ${secret:github-github_token}", "X-MCP-Readonly": "true"},
            }
        },
        inputs={"github-github_token"},
    ),
    Configuration(
        "VS Code",
        "its settings.json",
        """{
          "editor.fontSize": 14, // not for members
          "mcp": {"servers": {"fetch": {"command": "uvx", "args": ["mcp-server-fetch==2025.4.7"]}}},
        }""",
        {"fetch": {"command": "uvx", "args": ["mcp-server-fetch==2025.4.7"], "version": "2025.4.7"}},
    ),
]
CODEX = [
    Configuration(
        "Codex",
        "a stdio server with limits",
        f"""
        model = "gpt-5"

        [mcp_servers.search]
        command = "npx"
        args = ["-y", "brave-mcp"]
        startup_timeout_sec = 20
        tool_timeout_sec = 45
        enabled = true

        [mcp_servers.search.env]
        BRAVE_KEY = "{BRAVE}"
        """,
        {
            "search": {
                "args": ["-y", "brave-mcp"],
                "env": {"BRAVE_KEY": "${secret:search-BRAVE_KEY}"},
                "start_timeout": 20.0,
                "timeout": 45.0,
            }
        },
        {"search-BRAVE_KEY": BRAVE},
    ),
    Configuration(
        "Codex",
        "a remote server with a token from the environment",
        """
        [mcp_servers.figma]
        url = "https://mcp.figma.com/mcp"
        bearer_token_env_var = "FIGMA_OAUTH_TOKEN"
        http_headers = { "X-Figma-Region" = "us-east-1" }
        env_http_headers = { "X-Team" = "FIGMA_TEAM" }
        """,
        {
            "figma": {
                "url": "https://mcp.figma.com/mcp",
                "headers": {
                    "Authorization": "Bearer ${secret:figma-FIGMA_OAUTH_TOKEN}",
                    "X-Figma-Region": "us-east-1",
                    "X-Team": "${secret:figma-FIGMA_TEAM}",
                },
            }
        },
        inputs={"figma-FIGMA_OAUTH_TOKEN", "figma-FIGMA_TEAM"},
    ),
    Configuration(
        "Codex",
        "variables that it passes on",
        """
        [mcp_servers."company.docs"]
        command = "uvx"
        args = ["--from", "git+https://github.com/example/docs@0123456789abcdef0123456789abcdef01234567", "docs-mcp"]
        env_vars = ["DOCS_TOKEN"]
        cwd = "/srv/docs"
        """,
        {
            "company-docs": {
                "args": [
                    "--from",
                    "git+https://github.com/example/docs@0123456789abcdef0123456789abcdef01234567",
                    "docs-mcp",
                ],
                "env": {"DOCS_TOKEN": "${secret:company-docs-DOCS_TOKEN}"},
            }
        },
        inputs={"company-docs-DOCS_TOKEN"},
    ),
]
ZED = [
    Configuration(
        "Zed",
        "a local and a remote server in its settings",
        """// Zed settings
        {
          "theme": "One Dark",
          "context_servers": {
            "local-mcp-server": {"source": "custom", "command": "/opt/server", "args": ["--stdio"], "env": {}},
            "remote-mcp-server": {
              "url": "https://tools.example.com/mcp",
              "headers": {"Authorization": "Bearer q8Zx3vLm0KtR7wYb"},
            },
          },
        }""",
        {
            "local-mcp-server": {"command": "/opt/server", "args": ["--stdio"]},
            "remote-mcp-server": {
                "headers": {"Authorization": "Bearer ${secret:remote-mcp-server-Authorization}"},
            },
        },
        {"remote-mcp-server-Authorization": "q8Zx3vLm0KtR7wYb"},
    ),
    Configuration(
        "Zed",
        "the older form of a command",
        f"""{{"context_servers": {{"ask": {{
          "command": {{"path": "uvx", "args": ["ask-mcp@1.4.0"], "env": {{"OPENAI_API_KEY": "{OPENAI}"}}}},
          "settings": {{}}
        }}}}}}""",
        {
            "ask": {
                "command": "uvx",
                "args": ["ask-mcp@1.4.0"],
                "env": {"OPENAI_API_KEY": "${secret:ask-OPENAI_API_KEY}"},
                "version": "1.4.0",
            }
        },
        {"ask-OPENAI_API_KEY": OPENAI},
    ),
]
GEMINI = [
    Configuration(
        "Gemini CLI",
        "variables with a bare dollar",
        """{"mcpServers": {"pythonTools": {
          "command": "python", "args": ["-m", "my_mcp_server", "--port", "8080"],
          "env": {"DATABASE_URL": "$DB_CONNECTION_STRING", "API_KEY": "${EXTERNAL_API_KEY}"},
          "timeout": 15000, "trust": false
        }}}""",
        {
            "pythonTools": {
                "args": ["-m", "my_mcp_server", "--port", "8080"],
                "env": {
                    "DATABASE_URL": "${secret:pythonTools-DB_CONNECTION_STRING}",
                    "API_KEY": "${secret:pythonTools-EXTERNAL_API_KEY}",
                },
                "timeout": 15.0,
            }
        },
        inputs={"pythonTools-DB_CONNECTION_STRING", "pythonTools-EXTERNAL_API_KEY"},
    ),
    Configuration(
        "Gemini CLI",
        "httpUrl with headers",
        f"""{{"mcpServers": {{"github": {{
          "httpUrl": "https://api.githubcopilot.com/mcp/", "timeout": 5000,
          "headers": {{"Authorization": "Bearer {GITHUB}", "Accept": "application/json, text/event-stream"}}
        }}}}}}""",
        {
            "github": {
                "url": "https://api.githubcopilot.com/mcp/",
                "headers": {"Authorization": "Bearer ${secret:github-Authorization}"},
                "timeout": 5.0,
            }
        },
        {"github-Authorization": GITHUB},
    ),
    Configuration(
        "Gemini CLI",
        "its command",
        'gemini mcp add -e API_KEY=$MY_KEY --timeout 5000 files npx -y "files-mcp@2.0.1" --root "/srv/my files"',
        {
            "files": {
                "args": ["-y", "files-mcp@2.0.1", "--root", "/srv/my files"],
                "env": {"API_KEY": "${secret:files-MY_KEY}"},
            }
        },
        inputs={"files-MY_KEY"},
    ),
]
LINES = [
    Configuration(
        "a shell",
        "npx with a version and a flag",
        "$ npx -y @playwright/mcp@0.0.41 --headless",
        {
            "playwright": {
                "command": "npx",
                "args": ["-y", "@playwright/mcp@0.0.41", "--headless"],
                "version": "0.0.41",
            }
        },
    ),
    Configuration(
        "a shell",
        "variables before the command",
        f"OPENAI_API_KEY='{OPENAI}' LOG_LEVEL=info uvx mcp-server-time --local-timezone Europe/Berlin",
        {
            "time": {
                "command": "uvx",
                "args": ["mcp-server-time", "--local-timezone", "Europe/Berlin"],
                "env": {"OPENAI_API_KEY": "${secret:time-OPENAI_API_KEY}", "LOG_LEVEL": "info"},
            }
        },
        {"time-OPENAI_API_KEY": OPENAI},
    ),
    Configuration(
        "a browser",
        "an address",
        "https://mcp.sentry.dev/mcp",
        {"sentry": {"url": "https://mcp.sentry.dev/mcp", "transport": "http"}},
    ),
    Configuration(
        "a README",
        "one server without its name",
        '{"command": "uvx", "args": ["mcp-server-git", "--repository", "/srv/repo"]}',
        {"git": {"command": "uvx", "args": ["mcp-server-git", "--repository", "/srv/repo"]}},
    ),
]
CONFIGURATIONS = [*CLAUDE, *CURSOR, *WINDSURF, *VS_CODE, *CODEX, *ZED, *GEMINI, *LINES]
