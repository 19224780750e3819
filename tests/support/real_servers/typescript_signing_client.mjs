// A client on the official TypeScript SDK (1.x) that signs in: `typescript_signing_client.mjs URL [TOOL]`. It prints what
// tests/support/signing_client.py prints, and uses the tools again for each line that it reads.
// With TOOL it lists none, and calls this one.
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const url = new URL(process.argv[2]);
const require = createRequire(process.env.SDK_ROOT + "/");
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { Client } = await load("@modelcontextprotocol/sdk/client/index.js");
const { UnauthorizedError } = await load("@modelcontextprotocol/sdk/client/auth.js");
const { StreamableHTTPClientTransport } = await load("@modelcontextprotocol/sdk/client/streamableHttp.js");
const say = (values) => console.log(JSON.stringify(values));

let onCode;
const server = createServer((request, response) => {
  const target = new URL(request.url, "http://127.0.0.1");
  if (target.pathname === "/callback") onCode?.(target.searchParams.get("code"));
  response.end("You can close this page.");
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const redirectUrl = `http://127.0.0.1:${server.address().port}/callback`;

const kept = {};
const authProvider = {
  redirectUrl,
  clientMetadata: { client_name: "TypeScript client", redirect_uris: [redirectUrl], grant_types: ["authorization_code", "refresh_token"],
    response_types: ["code"], token_endpoint_auth_method: "client_secret_post" },
  clientInformation: () => kept.client,
  saveClientInformation: (client) => { kept.client = client; },
  tokens: () => kept.tokens,
  saveTokens: (tokens) => { kept.tokens = tokens; },
  redirectToAuthorization: (address) => {
    if (!kept.isAsked) say({ open: String(address) });
    kept.isAsked = true;
  },
  invalidateCredentials: (which) => { kept.tokens = undefined; if (which === "all") kept.client = undefined; },
  // The stream and a request may both be refused. The person is sent to the browser once, with the first verifier.
  saveCodeVerifier: (verifier) => { kept.verifier ??= verifier; },
  codeVerifier: () => kept.verifier,
};

let client, transport;
async function connect() {
  transport = new StreamableHTTPClientTransport(url, { authProvider });
  client = new Client({ name: "typescript", version: "1" });
  await client.connect(transport);
}

// The step, and once more after a person allowed the client, to whom it was sent by the first try.
async function signedIn(step) {
  const code = new Promise((resolve) => { onCode = resolve; });
  try {
    await step();
  } catch (error) {
    if (!(error instanceof UnauthorizedError)) throw error;
    await transport.finishAuth(await code);
    kept.verifier = kept.isAsked = undefined;
    await connect();
    if (step !== connect) await step();
  }
}

async function use() {
  let name = process.argv[3];
  if (!name) {
    const { tools } = await client.listTools();
    say({ tools: tools.map((tool) => tool.name) });
    name = tools.find((tool) => tool.name.endsWith("echo")).name;
  }
  const result = await client.callTool({ name, arguments: { text: "hi" } });
  say({ result: result.content[0].text });
}

await signedIn(connect);
await use();
for await (const line of createInterface({ input: process.stdin })) {
  await signedIn(use).catch((error) => say({ error: String(error) }));
}
process.exit(0);
