// A server on the official TypeScript SDK: `typescript_sdk.mjs PORT`, or without a port on stdin and stdout.
// It is loaded by its full path, because the SDK is installed in the folder of the conformance suite.
import { createServer } from "node:http";
import { randomUUID } from "node:crypto";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(process.env.SDK_ROOT + "/");
const load = (name) => import(pathToFileURL(require.resolve(`@modelcontextprotocol/sdk/${name}`)).href);
const { McpServer } = await load("server/mcp.js");
const { StdioServerTransport } = await load("server/stdio.js");
const { StreamableHTTPServerTransport } = await load("server/streamableHttp.js");
const { z } = await import(pathToFileURL(require.resolve("zod")).href);

function makeServer() {
  const server = new McpServer({ name: "typescript-sdk", version: "1" });
  const text = (value) => ({ content: [{ type: "text", text: value }] });
  server.registerTool("add", { description: "Adds.", inputSchema: { a: z.number(), b: z.number() } },
    async ({ a, b }) => text(String(a + b)));
  server.registerTool("count", { description: "Counts.", inputSchema: { to: z.number() } }, async ({ to }, extra) => {
    for (let progress = 1; progress <= to; progress++) {
      const progressToken = extra._meta?.progressToken;
      if (progressToken !== undefined)
        await extra.sendNotification({ method: "notifications/progress",
          params: { progressToken, progress, total: to, message: `at ${progress}` } });
    }
    return text("done");
  });
  server.registerTool("fail", { description: "Fails.", inputSchema: {} }, async () => {
    throw new Error("it went wrong");
  });
  return server;
}

const port = Number(process.argv[2] ?? 0);
if (!port) {
  await makeServer().connect(new StdioServerTransport());
} else {
  const sessions = new Map();
  const http = createServer(async (request, response) => {
    const openTransport = sessions.get(request.headers["mcp-session-id"]);
    if (openTransport) return openTransport.handleRequest(request, response);
    if (request.headers["mcp-session-id"]) return response.writeHead(404).end();
    const transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (id) => sessions.set(id, transport),
    });
    await makeServer().connect(transport);
    await transport.handleRequest(request, response);
  });
  http.on("error", (error) => { console.error(error.message); process.exit(2); });
  http.listen(port, "127.0.0.1");
}
