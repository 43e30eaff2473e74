// Loads the packed extension with a stand-in for VS Code that has everything and does nothing, activates it, and waits until the server has answered.
// The arguments are the extension's file and the command.
const Module = require("module");

const [, , file, command] = process.argv;
const errors = [];

// Any member is there: a class, a function that gives such a thing, a list without elements.
function anything(name, own = {}) {
  const target = class {};
  const made = new Proxy(target, {
    get(_, key) {
      if (key in own) return own[key];
      if (key === "prototype") return target.prototype;
      if (key === Symbol.toPrimitive || key === "toString") return () => name;
      if (key === Symbol.iterator) return [][Symbol.iterator].bind([]);
      if (key === "then") return undefined;
      return own[key] ??= anything(`${name}.${String(key)}`);
    },
    set: (_, key, value) => { own[key] = value; return true; },
    apply: () => anything(`${name}()`),
    construct: (_, args, of) => of === made ? anything(`new ${name}`) : Reflect.construct(target, args, of),
  });
  return made;
}

class Emitter { event = () => ({ dispose() {} }); fire() {} dispose() {} }
const list = (...values) => values;
const settings = { get: (key) => ({ command, options: "" })[key], has: () => false, inspect: () => undefined };
const vscode = anything("vscode", {
  version: "1.99.0",
  EventEmitter: Emitter,
  env: anything("env", { appName: "stand-in", language: "en" }),
  workspace: anything("workspace", {
    getConfiguration: () => settings, workspaceFolders: undefined, textDocuments: list(), notebookDocuments: list(),
    onDidChangeConfiguration: () => ({ dispose() {} }),
  }),
  window: anything("window", {
    createOutputChannel: () => ({ append() {}, appendLine() {}, show() {}, dispose() {}, error() {}, info() {}, warn() {}, debug() {}, trace() {} }),
    showErrorMessage: async (text) => { errors.push(text); },
    tabGroups: { all: list(), onDidChangeTabs: () => ({ dispose() {} }) }, visibleTextEditors: list(), activeTextEditor: undefined,
  }),
});
const load = Module._load;
Module._load = (name, ...more) => name === "vscode" ? vscode : load(name, ...more);

(async () => {
  const extension = require(file);
  const subscriptions = [];
  await extension.activate({ subscriptions });
  await extension.deactivate();
  console.log(JSON.stringify({ errors, subscriptions: subscriptions.length }));
  process.exit(0);
})().catch((error) => { console.error(error); process.exit(1); });
