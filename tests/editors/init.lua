-- Neovim with the server, as docs/editors.md has it, and what a user does in an editor: results go to a file.
local client = vim.lsp.start_client({ name = "meshwright", cmd = { "meshwright", "lsp" }, root_dir = vim.fn.getcwd() })
local out = {}

local function opened(name)
  vim.cmd("edit " .. name)
  vim.lsp.buf_attach_client(0, client)
  return vim.api.nvim_get_current_buf()
end

local function text(buffer)
  return table.concat(vim.api.nvim_buf_get_lines(buffer, 0, -1, false), "\n") .. "\n"
end

local function asked(method, params)
  local answers, failed = vim.lsp.buf_request_sync(0, method, params, 60000)
  if failed then error(method .. ": " .. failed) end
  local answer = answers[client]
  if answer.error then error(method .. ": " .. answer.error.message) end
  return answer.result
end

local function cursor(line, column)
  vim.api.nvim_win_set_cursor(0, { line, column })
end

local ok, why = pcall(function()
  local layout = opened("small.layout")
  local model = opened("small.mw")
  assert(vim.wait(60000, function() return vim.lsp.buf_is_attached(model, client) and vim.lsp.get_client_by_id(client).initialized end, 20))
  -- A mistake is typed and shown, and its fix taken.
  vim.api.nvim_buf_set_lines(model, 7, 8, false, { "    let h      = relu(dence(x, [pixels], [hidden]))" })
  assert(vim.wait(60000, function() return #vim.diagnostic.get(model) > 0 end, 20), "no diagnostic")
  out.code = vim.diagnostic.get(model)[1].code
  cursor(8, 22)
  local range = vim.lsp.util.make_range_params()
  range.context = { diagnostics = vim.lsp.diagnostic.get_line_diagnostics() }
  for _, action in ipairs(asked("textDocument/codeAction", range)) do
    if action.kind == "quickfix" and not out.fixed then
      vim.lsp.util.apply_workspace_edit(action.edit, "utf-16")
      out.fixed = text(model)
    end
  end
  assert(vim.wait(60000, function() return #vim.diagnostic.get(model) == 0 end, 20), "still wrong")
  -- The word under the cursor.
  cursor(8, 8)
  out.hover = asked("textDocument/hover", vim.lsp.util.make_position_params()).contents.value
  -- A dim gets another name, in the layout as well.
  cursor(3, 30)
  local params = vim.lsp.util.make_position_params()
  params.newName = "wide"
  vim.lsp.util.apply_workspace_edit(asked("textDocument/rename", params), "utf-16")
  out.renamed, out.renamed_layout = text(model), text(layout)
  -- Blanks that are not in the one style.
  vim.api.nvim_buf_set_lines(model, 7, 8, false, { "    let h =   relu(dense(x, [pixels], [wide]))" })
  vim.lsp.buf.formatting_sync(nil, 60000)
  out.formatted = text(model)
end)
out.why = not ok and why or nil
local file = io.open("said.json", "w")
file:write(vim.fn.json_encode(out))
file:close()
vim.lsp.stop_client(client)
vim.cmd("qall!")
