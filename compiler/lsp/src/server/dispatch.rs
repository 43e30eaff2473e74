//! Which answer a request gets.

use crate::features::{
    actions, completion, definition, folding, format, hover, inlay, lens, outline, rename, semantic,
};
use crate::project::Projects;
use crate::snapshot::Snapshot;
use lsp_server::{ErrorCode, Request, Response};
use lsp_types::request as r;

/// Answers a request.
pub(super) fn answer(request: Request, snapshot: &Snapshot, projects: &mut Projects) -> Response {
    let mut answering = Answering { request: Some(request), snapshot, projects, response: None };
    answering
        .on::<r::HoverRequest>(|s, p, params| Ok(hover::hover(s, p, &params)))
        .on::<r::Completion>(|s, p, params| Ok(completion::completion(s, p, &params)))
        .on::<r::GotoDefinition>(|s, p, params| Ok(definition::definition(s, p, &params)))
        .on::<r::References>(|s, p, params| Ok(definition::references(s, p, &params)))
        .on::<r::DocumentHighlightRequest>(|s, p, params| Ok(definition::highlights(s, p, &params)))
        .on::<r::PrepareRenameRequest>(|s, p, params| rename::prepare(s, p, &params))
        .on::<r::Rename>(|s, p, params| rename::rename(s, p, &params))
        .on::<r::CodeActionRequest>(|s, p, params| Ok(actions::actions(s, p, &params)))
        .on::<r::CodeLensRequest>(|s, p, params| Ok(lens::lenses(s, p, &params)))
        .on::<r::InlayHintRequest>(|s, p, params| Ok(inlay::hints(s, p, &params)))
        .on::<r::Formatting>(|s, _, params| format::edits(s, &params))
        .on::<r::SemanticTokensFullRequest>(|s, p, params| Ok(semantic::tokens(s, p, &params)))
        .on::<r::FoldingRangeRequest>(|s, _, params| Ok(folding::ranges(s, &params)))
        .on::<r::DocumentSymbolRequest>(|s, p, params| Ok(outline::symbols(s, p, &params)));
    answering.finish()
}

/// A request on its way through the table.
struct Answering<'a> {
    /// `None` once it is answered.
    request: Option<Request>,
    snapshot: &'a Snapshot,
    projects: &'a mut Projects,
    response: Option<Response>,
}

impl Answering<'_> {
    /// Answers requests of one method. What `f` cannot do it says in words.
    fn on<R: r::Request>(
        &mut self,
        f: impl FnOnce(&Snapshot, &mut Projects, R::Params) -> Result<R::Result, String>,
    ) -> &mut Self {
        let Some(request) = self.request.take_if(|r| r.method == R::METHOD) else { return self };
        let params = match serde_json::from_value(request.params) {
            Ok(params) => params,
            Err(e) => {
                let message = format!("`{}`: {e}", R::METHOD);
                self.response = Some(Response::new_err(request.id, ErrorCode::InvalidParams as i32, message));
                return self;
            }
        };
        self.response = Some(match f(self.snapshot, self.projects, params) {
            Ok(result) => Response::new_ok(request.id, result),
            Err(why) => Response::new_err(request.id, ErrorCode::RequestFailed as i32, why),
        });
        self
    }

    fn finish(self) -> Response {
        match (self.response, self.request) {
            (Some(response), _) => response,
            (None, Some(request)) => {
                let message = format!("there is no method `{}`", request.method);
                Response::new_err(request.id, ErrorCode::MethodNotFound as i32, message)
            }
            (None, None) => unreachable!("a request is answered when it is taken"),
        }
    }
}
