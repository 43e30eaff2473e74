//! The options of `lsp`.

use clap::Args;

#[derive(Args, Debug)]
#[command(after_help = "\
An editor starts it and speaks the Language Server Protocol with it. docs/editors.md tells what it can do.

Examples of settings of editors:

Neovim, in init.lua:
  vim.filetype.add({ extension = { mw = \"meshwright\", layout = \"meshwright-layout\" } })
  vim.api.nvim_create_autocmd(\"FileType\", {
    pattern = { \"meshwright\", \"meshwright-layout\" },
    callback = function() vim.lsp.start({ name = \"meshwright\", cmd = { \"meshwright\", \"lsp\" } }) end,
  })

Helix, in languages.toml:
  [language-server.meshwright]
  command = \"meshwright\"
  args = [\"lsp\"]

  [[language]]
  name = \"meshwright\"
  scope = \"source.meshwright\"
  file-types = [\"mw\"]
  comment-token = \"//\"
  language-servers = [\"meshwright\"]

VS Code: the extension in docs/editors/vscode.

A comment in a model or a layout says what it is shown with, as on the command line:
  // meshwright: --layout dp_tp --mesh 2x2 --preset tiny --machine dgx-h100")]
pub(crate) struct LspArgs {
    /// Use standard input and output, as is done in any case: some editors add this.
    #[arg(long, hide = true)]
    stdio: bool,
}
