// A client on the official TypeScript SDK: `typescript_client.mjs URL TOKEN KIND`, told what to do line by line.
// KIND: `sdk` (1.x), or `legacy` and `auto` of its next generation. Each line [method, ...arguments] gets one answer.
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
client.onerror = () => {};  // a stream that the runtime's end breaks off is opened anew by the transport
const requestInit = { headers: { Authorization: `Bearer ${token}` } };
await client.connect(new sdk.StreamableHTTPClientTransport(new URL(url), { requestInit }));

const verbs = {
  list: async () => (await client.listTools()).tools.map((tool) => tool.name),
  call: async (name, args) => (await client.callTool({ name, arguments: args })).content[0].text,
  progress: async (name, args) => {
    const told = [];
    const options = { onprogress: (progress) => told.push(progress.progress) };
    const schema = kind === "sdk" ? [undefined] : [];
    await client.callTool({ name, arguments: args }, ...schema, options);
    return told;
  },
};
console.log(JSON.stringify("ready"));
for await (const line of createInterface({ input: process.stdin })) {
  const [verb, ...args] = JSON.parse(line);
  const said = await verbs[verb](...args).catch((error) => ({ error: String(error) }));
  console.log(JSON.stringify(said));
}
process.exit(0);
