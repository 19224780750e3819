// A client on the official TypeScript SDK: `typescript_client.mjs URL TOKEN KIND`. Reads commands line by line.
// KIND: `sdk` (1.x), or `legacy` and `auto` of its next generation. Each line [method, ...arguments] gets one result.
import { createInterface } from "node:readline";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [url, token, kind] = process.argv.slice(2);
const require = createRequire(process.env.SDK_ROOT + "/");
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const sdk = kind === "sdk"
  ? { ...await load("@modelcontextprotocol/sdk/client/index.js"),
      ...await load("@modelcontextprotocol/sdk/client/streamableHttp.js") }
  : await load("@modelcontextprotocol/client");
const client = new sdk.Client({ name: "typescript", version: "1" },
  kind === "auto" ? { versionNegotiation: { mode: "auto" } } : {});
client.onerror = () => {};  // the transport reopens a stream that breaks off when the runtime ends
const requestInit = { headers: { Authorization: `Bearer ${token}` } };
await client.connect(new sdk.StreamableHTTPClientTransport(new URL(url), { requestInit }));

const verbs = {
  list: async () => (await client.listTools()).tools.map((tool) => tool.name),
  call: async (name, args) => (await client.callTool({ name, arguments: args })).content[0].text,
  progress: async (name, args) => {
    const steps = [];
    const options = { onprogress: (progress) => steps.push(progress.progress) };
    const schema = kind === "sdk" ? [undefined] : [];
    await client.callTool({ name, arguments: args }, ...schema, options);
    return steps;
  },
};
console.log(JSON.stringify("ready"));
for await (const line of createInterface({ input: process.stdin })) {
  const [verb, ...args] = JSON.parse(line);
  const result = await verbs[verb](...args).catch((error) => ({ error: String(error) }));
  console.log(JSON.stringify(result));
}
process.exit(0);
