"""The server as a client of the Language Server Protocol sees it."""

import pytest
import pytest_lsp
from conftest import LAYOUT, MODEL, at
from lsprotocol import types as lsp
from pytest_lsp import ClientServerConfig, LanguageClient, client_capabilities


@pytest_lsp.fixture(config=ClientServerConfig(server_command=["meshwright", "lsp"]))
async def client(lsp_client: LanguageClient):
    @lsp_client.feature(lsp.CLIENT_REGISTER_CAPABILITY)
    def registered(_: lsp.RegistrationParams) -> None:
        """An editor watches the files that the server names."""

    await lsp_client.initialize_session(
        lsp.InitializeParams(capabilities=client_capabilities("visual-studio-code"), workspace_folders=[])
    )
    yield
    await lsp_client.shutdown_session()


def document(path) -> lsp.TextDocumentIdentifier:
    return lsp.TextDocumentIdentifier(uri=path.as_uri())


def position(text, piece, n=0) -> lsp.Position:
    line, character = at(text, piece, n)
    return lsp.Position(line=line, character=character)


async def open_text(client, path, text=None):
    """Opens a file, and waits for what is wrong with it."""
    text = path.read_text() if text is None else text
    language = "meshwright-layout" if path.suffix == ".layout" else "meshwright"
    item = lsp.TextDocumentItem(uri=path.as_uri(), language_id=language, version=1, text=text)
    client.text_document_did_open(lsp.DidOpenTextDocumentParams(text_document=item))
    await client.wait_for_notification(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    return list(client.diagnostics[path.as_uri()])


def edited(text: str, changes) -> str:
    """A text after edits, whose places are those of the text before."""
    lines = text.splitlines(keepends=True)
    starts = [sum(map(len, lines[:n])) for n in range(len(lines) + 1)]
    place = lambda p: starts[p.line] + p.character
    for change in sorted(changes, key=lambda c: place(c.range.start), reverse=True):
        text = text[: place(change.range.start)] + change.new_text + text[place(change.range.end):]
    return text


@pytest.mark.asyncio
async def test_mistakes_have_places_and_fixes(client: LanguageClient, folder):
    path = folder / "small.mw"
    wrong = MODEL.replace("relu(dense(x", "relu(dence(x")
    found = await open_text(client, path, wrong)
    assert [d.code for d in found] == ["E0201"]
    assert found[0].range.start == position(wrong, "dence")
    actions = await client.text_document_code_action_async(
        lsp.CodeActionParams(text_document=document(path), range=found[0].range, context=lsp.CodeActionContext(diagnostics=found))
    )
    fix = next(a for a in actions if a.kind == lsp.CodeActionKind.QuickFix)
    changes = [c for d in fix.edit.document_changes or [] for c in d.edits] or fix.edit.changes[path.as_uri()]
    assert edited(wrong, changes) == MODEL
    # What is typed on the way is no reason to be silent.
    whole = lsp.TextDocumentContentChangeWholeDocument(text=MODEL)
    client.text_document_did_change(
        lsp.DidChangeTextDocumentParams(
            text_document=lsp.VersionedTextDocumentIdentifier(uri=path.as_uri(), version=2), content_changes=[whole]
        )
    )
    await client.wait_for_notification(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    assert not client.diagnostics[path.as_uri()]


@pytest.mark.asyncio
async def test_a_hover_has_the_shard_and_the_collectives(client: LanguageClient, folder):
    path = folder / "small.mw"
    assert await open_text(client, path) == []
    hover = await client.text_document_hover_async(
        lsp.HoverParams(text_document=document(path), position=position(MODEL, "logits"))
    )
    text = hover.contents.value
    for piece in ("batch", "classes", "rows", "all-reduce", "cols", "64 bytes"):
        assert piece in text, text
    hints = await client.text_document_inlay_hint_async(
        lsp.InlayHintParams(
            text_document=document(path),
            range=lsp.Range(start=lsp.Position(line=0, character=0), end=lsp.Position(line=20, character=0)),
        )
    )
    assert any("hidden" in str(h.label) for h in hints)


@pytest.mark.asyncio
async def test_a_rule_has_a_lens(client: LanguageClient, folder):
    path = folder / "small.layout"
    assert await open_text(client, path) == []
    lenses = await client.text_document_code_lens_async(lsp.CodeLensParams(text_document=document(path)))
    titles = {lens.range.start.line: lens.command.title for lens in lenses if lens.command}
    assert set(titles) >= {1, 2}, titles
    assert "all-reduce over cols, 64 B" in titles[2], titles


@pytest.mark.asyncio
async def test_names_lead_to_each_other(client: LanguageClient, folder):
    model, layout = folder / "small.mw", folder / "small.layout"
    await open_text(client, model)
    await open_text(client, layout)
    declared = await client.text_document_definition_async(
        lsp.DefinitionParams(text_document=document(layout), position=position(LAYOUT, "hidden"))
    )
    declared = declared[0] if isinstance(declared, list) else declared
    assert declared.uri == model.as_uri() and declared.range.start == position(MODEL, "hidden")
    library = await client.text_document_definition_async(
        lsp.DefinitionParams(text_document=document(model), position=position(MODEL, "dense"))
    )
    library = library[0] if isinstance(library, list) else library
    assert library.uri != model.as_uri()
    used = await client.text_document_references_async(
        lsp.ReferenceParams(
            text_document=document(model),
            position=position(MODEL, "hidden"),
            context=lsp.ReferenceContext(include_declaration=True),
        )
    )
    assert {r.uri for r in used} == {model.as_uri(), layout.as_uri()} and len(used) == 4
    renamed = await client.text_document_rename_async(
        lsp.RenameParams(text_document=document(model), position=position(MODEL, "hidden"), new_name="wide")
    )
    changes = renamed.changes or {d.text_document.uri: d.edits for d in renamed.document_changes}
    assert edited(MODEL, changes[model.as_uri()]) == MODEL.replace("hidden", "wide")
    assert edited(LAYOUT, changes[layout.as_uri()]) == LAYOUT.replace("hidden", "wide")
    with pytest.raises(Exception, match="batch"):
        await client.text_document_rename_async(
            lsp.RenameParams(text_document=document(model), position=position(MODEL, "hidden"), new_name="batch")
        )


@pytest.mark.asyncio
async def test_texts_are_completed_formatted_colored_and_folded(client: LanguageClient, folder):
    path = folder / "small.mw"
    await open_text(client, path)
    found = await client.text_document_completion_async(
        lsp.CompletionParams(text_document=document(path), position=position(MODEL, "cross_entropy"))
    )
    labels = {i.label for i in (found.items if hasattr(found, "items") else found)}
    assert {"cross_entropy", "dense", "logits", "relu"} <= labels
    loose = MODEL.replace("let h      =", "let h =")
    crooked = folder / "crooked.mw"
    await open_text(client, crooked, loose)
    changes = await client.text_document_formatting_async(
        lsp.DocumentFormattingParams(
            text_document=document(crooked), options=lsp.FormattingOptions(tab_size=4, insert_spaces=True)
        )
    )
    assert edited(loose, changes) == MODEL
    tokens = await client.text_document_semantic_tokens_full_async(lsp.SemanticTokensParams(text_document=document(path)))
    assert len(tokens.data) % 5 == 0 and len(tokens.data) > 200
    folds = await client.text_document_folding_range_async(lsp.FoldingRangeParams(text_document=document(path)))
    assert (4, 9) in {(f.start_line, f.end_line) for f in folds}
    outline = await client.text_document_document_symbol_async(lsp.DocumentSymbolParams(text_document=document(path)))
    names = {s.name for s in outline}
    assert any("small" in n for n in names), names
