// Starts `meshwright lsp` for models and layouts, and says what to do where it does not start.

const { commands, window, workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

function setting(name) {
  return workspace.getConfiguration("meshwright").get(name);
}

async function start() {
  const command = setting("command") || "meshwright";
  const server = { command, args: ["lsp"] };
  client = new LanguageClient("meshwright", "Meshwright", server, {
    documentSelector: [{ language: "meshwright" }, { language: "meshwright-layout" }],
    initializationOptions: { options: setting("options") || "" },
    synchronize: { configurationSection: "meshwright" },
  });
  try {
    await client.start();
  } catch (error) {
    client = undefined;
    const open = "Open settings";
    const reason = error?.message ? `: ${error.message}` : "";
    const why = `\`${command} lsp\` does not start${reason}. Set meshwright.command to the path of the command.`;
    if (await window.showErrorMessage(why, open) === open) {
      await commands.executeCommand("workbench.action.openSettings", "meshwright.command");
    }
  }
}

async function stop() {
  const old = client;
  client = undefined;
  await old?.stop();
}

async function restart() {
  await stop();
  await start();
}

function activate(context) {
  context.subscriptions.push(
    commands.registerCommand("meshwright.restart", restart),
    workspace.onDidChangeConfiguration((change) => {
      if (change.affectsConfiguration("meshwright.command")) return restart();
    }),
  );
  return start();
}

module.exports = { activate, deactivate: stop };
