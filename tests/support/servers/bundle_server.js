// A stdio server for a bundle. Its first argument is a file, which it reads only after it changed its folder.
const fs = require("fs");
const readline = require("readline");

process.chdir("/usr");
const tool = { name: "greet", inputSchema: { type: "object" } };

function resultOf(message) {
  if (message.method === "initialize") {
    const serverInfo = { name: "bundle", version: "1" };
    return { protocolVersion: message.params.protocolVersion, capabilities: { tools: {} }, serverInfo };
  }
  if (message.method === "tools/list") return { tools: [tool] };
  if (message.method === "tools/call") {
    const words = [fs.readFileSync(process.argv[2], "utf8"), ...process.argv.slice(3), `key of ${(process.env.API_KEY || "").length}`];
    return { content: [{ type: "text", text: words.join(" ") }] };
  }
  return {};
}

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const message = JSON.parse(line);
  if (message.id === undefined) return;
  process.stdout.write(JSON.stringify({ jsonrpc: "2.0", id: message.id, result: resultOf(message) }) + "\n");
});
