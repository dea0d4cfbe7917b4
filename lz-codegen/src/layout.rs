//! Layout of generated Rust: `prettyplease` for the language, and one clause per line for the tables that macros of
//! `lz_core::call` take, whose tokens `prettyplease` cannot lay out.

use proc_macro2::{Delimiter, Group, Ident, Punct, Spacing, Span, TokenStream, TokenTree};

/// Columns of a line, as in `rustfmt.toml`.
const WIDTH: usize = 110;

/// Macros whose arguments are tables.
const TABLES: &[&str] = &[
    "arguments",
    "axes",
    "checked_call",
    "cpp_entries",
    "enumeration",
    "every",
    "kernel_trait",
    "operation_functions",
    "output",
    "output_slots",
    "plugin_entries",
    "plugin_kernel",
    "python_function",
    "reason_codes",
    "references",
    "same_device",
    "shape",
    "sizes",
    "specialization",
    "subjects",
    "unbound",
    "value_rule",
    "written_disjoint",
];

/// A file as text; the error is why the tokens are not Rust.
pub fn unparse(tokens: TokenStream) -> Result<String, syn::Error> {
    let mut tables = Vec::new();
    let file = syn::parse2::<syn::File>(extract_tables(tokens, &mut tables))?;
    let mut text = prettyplease::unparse(&file);
    for (number, table) in tables.iter().enumerate() {
        let marker = placeholder(number);
        let Some(at) = text.find(&marker) else { continue };
        let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
        let indent = text[line..at].len() - text[line..at].trim_start().len();
        let laid_out = lay_out(table, indent, text[line..at].chars().count());
        text.replace_range(at..at + marker.len(), &laid_out);
    }
    Ok(separated(&text))
}

/// With an empty line between items, except between `use`s, `mod`s and constants of one line.
fn separated(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut before = "";
    for line in text.lines() {
        let begins = line.starts_with(|letter: char| !letter.is_whitespace() && !")}]".contains(letter));
        let ended = before.ends_with([';', '}']) && !before.starts_with(' ');
        let alike = ["use ", "const ", "pub use ", "mod ", "pub mod "]
            .iter()
            .any(|word| before.starts_with(word) && (line.starts_with(word) || line.starts_with("///")));
        if begins && ended && !alike {
            result.push('\n');
        }
        result.push_str(line);
        result.push('\n');
        before = line;
    }
    result
}

fn placeholder(number: usize) -> String {
    format!("__table_{number}__")
}

/// Replaces the arguments of tables by placeholders.
fn extract_tables(tokens: TokenStream, tables: &mut Vec<TokenStream>) -> TokenStream {
    let mut result: Vec<TokenTree> = Vec::new();
    for tree in tokens {
        let TokenTree::Group(group) = tree else {
            result.push(tree);
            continue;
        };
        let inner = if group.delimiter() == Delimiter::Parenthesis && names_table(&result) {
            let marker = Ident::new(&placeholder(tables.len()), Span::call_site());
            tables.push(group.stream());
            TokenTree::from(marker).into()
        } else {
            extract_tables(group.stream(), tables)
        };
        result.push(Group::new(group.delimiter(), inner).into());
    }
    result.into_iter().collect()
}

/// Whether the tokens end in `name!` of a table.
fn names_table(before: &[TokenTree]) -> bool {
    match before {
        [.., TokenTree::Ident(name), TokenTree::Punct(mark)] => {
            mark.as_char() == '!' && TABLES.iter().any(|table| name == table)
        }
        _ => false,
    }
}

/// On one line if it fits behind `column`; else one clause per line, indented below `indent`.
fn lay_out(table: &TokenStream, indent: usize, column: usize) -> String {
    let whole = text_of(table.clone());
    if column + whole.chars().count() + ");".len() <= WIDTH {
        return whole;
    }
    let inner = indent + 4;
    let mut text = String::new();
    for clause in clauses(table.clone()) {
        text.push('\n');
        text.push_str(&wrap(&clause, inner));
    }
    text.push('\n');
    text.push_str(&" ".repeat(indent));
    text
}

/// The parts between top-level semicolons, each with its semicolon.
fn clauses(table: TokenStream) -> Vec<String> {
    let mut clauses = Vec::new();
    let mut clause: Vec<TokenTree> = Vec::new();
    for tree in table {
        let ends = matches!(&tree, TokenTree::Punct(mark) if mark.as_char() == ';');
        clause.push(tree);
        if ends {
            clauses.push(text_of(clause.drain(..).collect()));
        }
    }
    if !clause.is_empty() {
        clauses.push(text_of(clause.into_iter().collect()));
    }
    clauses
}

/// Breaks a clause behind commas where it is too long; continuations are indented further.
fn wrap(clause: &str, indent: usize) -> String {
    let mut text = " ".repeat(indent);
    let mut column = indent;
    let continuation = indent + 4;
    for piece in pieces(clause) {
        let width = piece.chars().count();
        if column > continuation && column + width > WIDTH {
            text.truncate(text.trim_end().len());
            text.push('\n');
            text.push_str(&" ".repeat(continuation));
            column = continuation;
        }
        text.push_str(piece);
        column += width;
    }
    text.truncate(text.trim_end().len());
    text
}

/// The parts of a text that end behind a comma and a space, outside of string literals and of nested groups.
fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let (mut start, mut quoted, mut escaped, mut previous) = (0, false, false, ' ');
    let mut depth = 0usize;
    for (at, letter) in text.char_indices() {
        if quoted {
            quoted = escaped || letter != '"';
            escaped = !escaped && letter == '\\';
        } else if letter == '"' {
            quoted = true;
        } else if "([{".contains(letter) {
            depth += 1;
        } else if ")]}".contains(letter) {
            depth = depth.saturating_sub(1);
        } else if letter == ' ' && previous == ',' && depth <= 1 {
            pieces.push(&text[start..=at]);
            start = at + 1;
        }
        previous = letter;
    }
    pieces.push(&text[start..]);
    pieces
}

/// What stands before a token, as far as spacing depends on it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PrecedingToken {
    /// Nothing, or something after which an operator is a sign and no space is needed.
    Open,
    /// A word, literal or closed group.
    Operand,
    /// A keyword: a word that is no operand.
    Keyword,
    /// An operator or comma: a space follows.
    Operator,
    /// A sign, dot or path separator: no space follows.
    Tight,
}

/// Tokens on one line.
fn text_of(tokens: TokenStream) -> String {
    let mut text = String::new();
    let mut before = PrecedingToken::Open;
    let mut trees = tokens.into_iter().peekable();
    while let Some(tree) = trees.next() {
        match tree {
            TokenTree::Group(group) => {
                let inner = text_of(group.stream());
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::Brace => ("{ ", " }"),
                    Delimiter::None => ("", ""),
                };
                let spaced = match before {
                    PrecedingToken::Open | PrecedingToken::Tight => false,
                    PrecedingToken::Operand => group.delimiter() == Delimiter::Brace,
                    PrecedingToken::Keyword | PrecedingToken::Operator => true,
                };
                if spaced {
                    text.push(' ');
                }
                text.push_str(open);
                text.push_str(&inner);
                text.push_str(close);
                before = PrecedingToken::Operand;
            }
            TokenTree::Ident(word) => {
                let word = word.to_string();
                if !matches!(before, PrecedingToken::Open | PrecedingToken::Tight) {
                    text.push(' ');
                }
                text.push_str(&word);
                let keyword = ["as", "if", "else", "in", "match", "return", "mut"].contains(&word.as_str());
                before = if keyword { PrecedingToken::Keyword } else { PrecedingToken::Operand };
            }
            TokenTree::Literal(literal) => {
                if !matches!(before, PrecedingToken::Open | PrecedingToken::Tight) {
                    text.push(' ');
                }
                text.push_str(&literal.to_string());
                before = PrecedingToken::Operand;
            }
            TokenTree::Punct(first) => {
                let mut operator = String::from(first.as_char());
                let mut last: Punct = first;
                while last.spacing() == Spacing::Joint {
                    let Some(TokenTree::Punct(next)) = trees.peek().cloned() else { break };
                    operator.push(next.as_char());
                    last = next;
                    trees.next();
                }
                before = push_operator(&mut text, &operator, before);
            }
        }
    }
    text
}

/// Appends an operator with its spaces.
fn push_operator(text: &mut String, operator: &str, before: PrecedingToken) -> PrecedingToken {
    match operator {
        "," | ";" | ":" => {
            text.push_str(operator);
            PrecedingToken::Operator
        }
        "?" => {
            text.push_str(operator);
            PrecedingToken::Operand
        }
        "." | ".." | "::" | "/" => {
            if before == PrecedingToken::Operator {
                text.push(' ');
            }
            text.push_str(operator);
            PrecedingToken::Tight
        }
        "!" | "&" | "-" | "*" if before != PrecedingToken::Operand => {
            if matches!(before, PrecedingToken::Operator | PrecedingToken::Keyword) {
                text.push(' ');
            }
            text.push_str(operator);
            PrecedingToken::Tight
        }
        "!" => {
            text.push_str(operator);
            PrecedingToken::Tight
        }
        _ => {
            if before != PrecedingToken::Open {
                text.push(' ');
            }
            text.push_str(operator);
            PrecedingToken::Operator
        }
    }
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::unparse;

    #[test]
    fn tables_are_laid_out_by_clause() {
        let text = unparse(quote! {
            lz::axes!(NormRmsAxes: rows..rows_dims, hidden, bits = "a, b");
            lz::checked_call!(
                "an.operation.with.a.long.name", INFO, Args, Axes, Call;
                inputs(first_input, second_input, third_input, fourth_input, fifth_input, sixth_input, seventh(a, b), last);
                params(eps: f32, flag: bool);
            );
            fn check(&self) -> Option<()> {
                match layout {
                    Layout::Nhd | Layout::Hnd => lz::shape!(view, axes, [batch, (seq + 1), _, 3]),
                }
                lz::value_rule!(self, tokens: range_ok(-1, lz::arith::add_int(axes.total, 1)?));
                Some(())
            }
        });
        let expected = "\
lz::axes!(NormRmsAxes: rows..rows_dims, hidden, bits = \"a, b\");

lz::checked_call!(
    \"an.operation.with.a.long.name\", INFO, Args, Axes, Call;
    inputs(first_input, second_input, third_input, fourth_input, fifth_input, sixth_input, seventh(a, b),
        last);
    params(eps: f32, flag: bool);
);

fn check(&self) -> Option<()> {
    match layout {
        Layout::Nhd | Layout::Hnd => lz::shape!(view, axes, [batch, (seq + 1), _, 3]),
    }
    lz::value_rule!(self, tokens: range_ok(-1, lz::arith::add_int(axes.total, 1)?));
    Some(())
}
";
        assert_eq!(text.unwrap(), expected);
    }
}
