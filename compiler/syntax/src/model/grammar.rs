//! The generated parser of model files, and its rules in users' words.

#[derive(pest_derive::Parser)]
#[grammar = "model.pest"]
pub(crate) struct Grammar;

/// What a rule is to a user; `None` for what no message should mention.
pub(crate) fn words(rule: &Rule) -> Option<&'static str> {
    Some(match rule {
        Rule::name
        | Rule::names
        | Rule::binding
        | Rule::bindings
        | Rule::bound
        | Rule::metric
        | Rule::assign => "a name",
        Rule::block_head | Rule::layer_head | Rule::layer_param | Rule::variable | Rule::input => "a name",
        Rule::repeated | Rule::minimize | Rule::optimizer | Rule::clip | Rule::preset_entry => "a name",
        Rule::item | Rule::group | Rule::product | Rule::target => "a dim",
        Rule::dtype | Rule::precision => "a type such as `f32`",
        Rule::glob | Rule::globs | Rule::freeze | Rule::group_head => "a parameter path",
        Rule::import | Rule::string => "a file name in quotes",
        Rule::expr
        | Rule::operand
        | Rule::primary
        | Rule::sign
        | Rule::arg
        | Rule::returned
        | Rule::decay
        | Rule::ema => "an expression",
        Rule::integer | Rule::float | Rule::boolean | Rule::paren | Rule::applied => "an expression",
        Rule::operator => "an operator",
        Rule::statement_end => "the next statement",
        Rule::item_end => "the next item",
        Rule::setting_end => "the next setting",
        Rule::entry_end => "the next entry",
        Rule::comma => "`,`",
        Rule::colon => "`:`",
        Rule::semicolon => "`;`",
        Rule::equals => "`=`",
        Rule::arrow => "`->`",
        Rule::dots => "`..`",
        Rule::times => "`*`",
        Rule::open_paren | Rule::args => "`(`",
        Rule::close_paren => "`)`",
        Rule::open_bracket | Rule::dims | Rule::bracket => "`[`",
        Rule::close_bracket => "`]`",
        Rule::open_brace => "`{`",
        Rule::kw_as | Rule::label => "`as`",
        Rule::kw_sharing | Rule::sharing => "`sharing`",
        Rule::kw_by => "`by`",
        Rule::kw_in | Rule::within => "`in`",
        Rule::kw_except => "`except`",
        Rule::kw_of => "`of`",
        Rule::kw_every | Rule::turn => "`every`",
        Rule::kw_from => "`from`",
        Rule::better => "`min` or `max`",
        _ => return None,
    })
}

/// Whether a rule is there for form only and has no part in the tree.
pub(crate) fn is_form(rule: Rule) -> bool {
    matches!(
        rule,
        Rule::comma
            | Rule::colon
            | Rule::semicolon
            | Rule::equals
            | Rule::arrow
            | Rule::dots
            | Rule::times
            | Rule::open_paren
            | Rule::close_paren
            | Rule::open_bracket
            | Rule::close_bracket
            | Rule::open_brace
            | Rule::kw_as
            | Rule::kw_sharing
            | Rule::kw_by
            | Rule::kw_in
            | Rule::kw_except
            | Rule::kw_of
            | Rule::kw_every
            | Rule::kw_from
            | Rule::statement_end
            | Rule::item_end
            | Rule::setting_end
            | Rule::entry_end
            | Rule::EOI
    )
}
