//! The generated back end of the expression language: a typed tree as a Rust expression.
//!
//! It computes what [`lz_schema::expr::Program`] computes, by the same functions of [`lz_schema::expr::arith`], and is
//! lazy where that is lazy. The meaning of a variable is the caller's: it supplies the tokens for each.

use lz_schema::expr::ast::{Arithmetic, Comparison, Logic};
use lz_schema::expr::{Function, Node, NodeKind, Type, Typed, Value};
use proc_macro2::{Literal, TokenStream};
use quote::quote;

/// A Rust expression of type `Result<T, EvalError>`, where `T` is `i64`, `f64`, `bool` or, for an enum, `u32`.
///
/// `arith` is the path of [`lz_schema::expr::arith`] as the generated code sees it (`::lz_core::expr::arith`).
/// `variable` gives, for a name and its slot, an expression of type `T` that may be evaluated any number of times
/// and uses no name that begins with two underscores;
/// the presence of an optional input comes as a variable of the name `given(input)`.
pub fn rust_tokens(
    typed: &Typed,
    arith: &TokenStream,
    variable: &dyn Fn(&str, u16) -> TokenStream,
) -> TokenStream {
    let piece = Emitter { arith, variable }.emit(&typed.root);
    let (body, tries) = if piece.is_result {
        let operands = typed.root.children();
        (piece.tokens, operands.into_iter().any(|operand| !operand.is_total()))
    } else {
        let (ty, value) = (rust_type(&typed.ty), piece.tokens);
        (quote!(::core::result::Result::Ok::<#ty, #arith::EvalError>(#value)), !typed.is_total())
    };
    // A closure, so that the `?` inside returns from it.
    if tries { quote!((|| #body)()) } else { body }
}

/// A Rust expression of type `T` (see [`rust_tokens`]) that uses `?` wherever evaluation can fail, inside
/// a function whose error can be made from `EvalError`. Without failure ([`Typed::is_total`]) there is no `?`.
pub fn rust_value_tokens(
    typed: &Typed,
    arith: &TokenStream,
    variable: &dyn Fn(&str, u16) -> TokenStream,
) -> TokenStream {
    Emitter { arith, variable }.value(&typed.root)
}

/// The Rust type that holds a value of this type in generated code.
pub fn rust_type(ty: &Type) -> TokenStream {
    match ty {
        Type::Int => quote!(i64),
        Type::Float => quote!(f64),
        Type::Bool => quote!(bool),
        Type::Enum(_) => quote!(u32),
    }
}

/// Precedence of a piece of Rust, highest first: determines parentheses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Precedence {
    /// A path, a call, a literal: allowed anywhere.
    Atom,
    /// A sign before an atom.
    Sign,
    Comparison,
    And,
    Or,
    /// A block or an `if`: allowed only as a whole expression.
    Whole,
}

/// A piece of Rust on its way into a larger one.
struct Piece {
    tokens: TokenStream,
    binding: Precedence,
    /// Whether it is a `Result` whose `?` is still to be written.
    is_result: bool,
}

impl Piece {
    fn new(tokens: TokenStream, binding: Precedence) -> Piece {
        Piece { tokens, binding, is_result: false }
    }

    /// As a value by itself: an argument, a branch.
    fn value(self) -> TokenStream {
        let tokens = self.tokens;
        if self.is_result { quote!(#tokens?) } else { tokens }
    }

    /// As an operand of at least this precedence.
    fn within(self, loosest: Precedence) -> TokenStream {
        let loose = self.binding > loosest;
        let tokens = self.value();
        if loose { quote!((#tokens)) } else { tokens }
    }
}

struct Emitter<'a> {
    arith: &'a TokenStream,
    variable: &'a dyn Fn(&str, u16) -> TokenStream,
}

impl Emitter<'_> {
    fn emit(&self, node: &Node) -> Piece {
        let float = node.ty == Type::Float;
        match &node.kind {
            NodeKind::Constant(value) => constant(*value),
            NodeKind::Variable { index, name } => {
                let tokens = (self.variable)(name, *index);
                let binding = if is_atom(&tokens) { Precedence::Atom } else { Precedence::Whole };
                Piece::new(tokens, binding)
            }
            NodeKind::Widen(operand) => self.certain("widen", [&**operand]),
            NodeKind::Negate(operand) if float => self.certain("negate_float", [&**operand]),
            NodeKind::Negate(operand) => self.fallible("negate_int", [&**operand]),
            NodeKind::Not(operand) => {
                let operand = self.emit(operand).within(Precedence::Atom);
                Piece::new(quote!(!#operand), Precedence::Sign)
            }
            NodeKind::Arithmetic { operator, left, right } => {
                self.fallible(arithmetic_name(*operator, float), [&**left, &**right])
            }
            NodeKind::Logic { operator, left, right } => {
                let binding = if *operator == Logic::And { Precedence::And } else { Precedence::Or };
                let (left, right) = (self.emit(left).within(binding), self.emit(right).within(binding));
                match operator {
                    Logic::And => Piece::new(quote!(#left && #right), binding),
                    Logic::Or => Piece::new(quote!(#left || #right), binding),
                }
            }
            NodeKind::Compare { operator, left, right } => {
                let (left, right) = (self.emit(left), self.emit(right));
                let tokens =
                    compare(*operator, &left.within(Precedence::Sign), &right.within(Precedence::Sign));
                Piece::new(tokens, Precedence::Comparison)
            }
            NodeKind::Member { negated, item, list } => self.member(*negated, item, list),
            NodeKind::Conditional { condition, then, otherwise } => {
                let condition = self.emit(condition).within(Precedence::Or);
                let (then, otherwise) = (self.value(then), self.value(otherwise));
                Piece::new(quote!(if #condition { #then } else { #otherwise }), Precedence::Whole)
            }
            NodeKind::Call { function: Function::CeilDiv, arguments } => {
                self.fallible("ceil_divide_int", arguments)
            }
            NodeKind::Call { function: Function::Sqrt, arguments } => self.fallible("sqrt_float", arguments),
            NodeKind::Call { function: Function::Exp, arguments } => self.fallible("exp_float", arguments),
            NodeKind::Call { function: Function::Log, arguments } => self.fallible("log_float", arguments),
            NodeKind::Call { function: Function::Tanh, arguments } => self.certain("tanh_float", arguments),
            NodeKind::Call { function: Function::Abs, arguments } if float => {
                self.certain("abs_float", arguments)
            }
            NodeKind::Call { function: Function::Abs, arguments } => self.fallible("abs_int", arguments),
            NodeKind::Call { function: Function::Min, arguments } => {
                self.fold(if float { "min_float" } else { "min_int" }, arguments)
            }
            NodeKind::Call { function: Function::Max, arguments } => {
                self.fold(if float { "max_float" } else { "max_int" }, arguments)
            }
        }
    }

    fn value(&self, node: &Node) -> TokenStream {
        self.emit(node).value()
    }

    /// Equality with each item of the list; the item is computed once, and first.
    fn member(&self, negated: bool, item: &Node, list: &[Node]) -> Piece {
        let plain = matches!(item.kind, NodeKind::Constant(_) | NodeKind::Variable { .. });
        let item = self.emit(item).within(if plain { Precedence::Sign } else { Precedence::Whole });
        // The name must not hide a variable of the list: the tokens of variables never begin with two underscores.
        let subject = if plain { item.clone() } else { quote!(__looked_for) };
        let operator = if negated { Comparison::NotEqual } else { Comparison::Equal };
        let tests =
            list.iter().map(|other| compare(operator, &subject, &self.emit(other).within(Precedence::Sign)));
        let (tests, binding) = match negated {
            true => (quote!(#(#tests)&&*), Precedence::And),
            false => (quote!(#(#tests)||*), Precedence::Or),
        };
        if plain {
            return Piece::new(tests, binding);
        }
        Piece::new(quote!({ let __looked_for = #item; #tests }), Precedence::Whole)
    }

    /// A function of two, applied from the left to one or more, as the program does.
    fn fold(&self, name: &str, arguments: &[Node]) -> Piece {
        let pieces = arguments.iter().map(|argument| self.emit(argument));
        let folded = pieces.reduce(|left, right| {
            Piece::new(self.call(name, [left.value(), right.value()]), Precedence::Atom)
        });
        folded.unwrap_or_else(|| self.certain(name, []))
    }

    /// A call that always gives a value.
    fn certain<'n>(&self, name: &str, operands: impl IntoIterator<Item = &'n Node>) -> Piece {
        let operands = operands.into_iter().map(|operand| self.value(operand));
        Piece::new(self.call(name, operands), Precedence::Atom)
    }

    /// A call that gives a `Result`.
    fn fallible<'n>(&self, name: &str, operands: impl IntoIterator<Item = &'n Node>) -> Piece {
        Piece { is_result: true, ..self.certain(name, operands) }
    }

    fn call(&self, name: &str, operands: impl IntoIterator<Item = TokenStream>) -> TokenStream {
        let arith = self.arith;
        let name = quote::format_ident!("{name}");
        let operands = operands.into_iter();
        quote!(#arith::#name(#(#operands),*))
    }
}

fn arithmetic_name(operator: Arithmetic, float: bool) -> &'static str {
    match (operator, float) {
        (Arithmetic::Add, false) => "add_int",
        (Arithmetic::Add, true) => "add_float",
        (Arithmetic::Subtract, false) => "subtract_int",
        (Arithmetic::Subtract, true) => "subtract_float",
        (Arithmetic::Multiply, false) => "multiply_int",
        (Arithmetic::Multiply, true) => "multiply_float",
        (Arithmetic::FloorDivide, false) => "floor_divide_int",
        (Arithmetic::FloorDivide, true) => "floor_divide_float",
        (Arithmetic::Modulo, false) => "modulo_int",
        (Arithmetic::Modulo, true) => "modulo_float",
        // Checking widens the operands of `/`.
        (Arithmetic::Divide, _) => "divide_float",
    }
}

fn compare(operator: Comparison, left: &TokenStream, right: &TokenStream) -> TokenStream {
    match operator {
        Comparison::Equal => quote!(#left == #right),
        Comparison::NotEqual => quote!(#left != #right),
        Comparison::Less => quote!(#left < #right),
        Comparison::LessOrEqual => quote!(#left <= #right),
        Comparison::Greater => quote!(#left > #right),
        Comparison::GreaterOrEqual => quote!(#left >= #right),
    }
}

fn constant(value: Value) -> Piece {
    match value {
        Value::Int(i64::MIN) => Piece::new(quote!(i64::MIN), Precedence::Atom),
        Value::Int(value) => signed(value < 0, Literal::i64_suffixed(value.abs())),
        Value::Bool(value) => Piece::new(quote!(#value), Precedence::Atom),
        Value::Enum(case) => Piece::new(quote!(#case), Precedence::Atom),
        // The debug form is the shortest that reads back as the same float, `1e300` rather than 301 digits.
        Value::Float(value) => match format!("{:?}f64", value.abs()).parse::<Literal>() {
            Ok(literal) if value.is_finite() => signed(value.is_sign_negative(), literal),
            _ => {
                let bits = value.to_bits();
                Piece::new(quote!(f64::from_bits(#bits)), Precedence::Atom)
            }
        },
    }
}

fn signed(negative: bool, magnitude: Literal) -> Piece {
    match negative {
        true => Piece::new(quote!(-#magnitude), Precedence::Sign),
        false => Piece::new(quote!(#magnitude), Precedence::Atom),
    }
}

/// Whether the caller's tokens for a variable can be an operand as they are.
pub(crate) fn is_atom(tokens: &TokenStream) -> bool {
    use syn::Expr::{Call, Field, Index, Lit, Macro, MethodCall, Paren, Path, Try};
    let parsed = syn::parse2::<syn::Expr>(tokens.clone());
    matches!(
        parsed,
        Ok(Call(_) | Field(_) | Index(_) | Lit(_) | Macro(_) | MethodCall(_) | Paren(_) | Path(_) | Try(_))
    )
}

#[cfg(test)]
mod tests {
    use lz_schema::expr::{Type, VariableTable, check};
    use quote::{format_ident, quote};

    use super::{rust_tokens, rust_value_tokens};

    #[test]
    fn generated_rust_reads_like_written_rust() {
        let mut scope = VariableTable::new();
        for name in ["heads", "kv_heads", "head_dim"] {
            scope.add(name, Type::Int);
        }
        scope.add("causal", Type::Bool);
        scope.add("layout", Type::enumeration(["BSHD", "BHSD"]));
        scope.add_given("mask");
        let variable = |name: &str, _: u16| match name.strip_prefix("given(") {
            Some(_) => quote!(self.mask.is_some()),
            None if name == "heads" => quote!(heads as i64),
            None => {
                let name = format_ident!("{name}");
                quote!(#name)
            }
        };
        let report = [
            "heads % kv_heads == 0",
            "head_dim in [64, 128] and head_dim <= 256",
            "1 / sqrt(head_dim)",
            "head_dim",
            "ceil_div(head_dim, 16) + 1",
            "head_dim + 1",
            "heads < 8 or not causal and layout == BHSD",
            "(heads if causal else -1) > -9223372036854775808",
            "not given(mask) or heads + 1 not in [kv_heads, 3]",
            "min(heads, kv_heads, 4) * 1.5 - 1e300",
            "causal == (heads == kv_heads)",
        ]
        .map(|text| {
            let typed = check(text, &scope).unwrap();
            let whole = rust_tokens(&typed, &quote!(arith), &variable);
            let inner = rust_value_tokens(&typed, &quote!(arith), &variable);
            let pretty = prettyplease::unparse(&syn::parse_quote! {
                const WHOLE: () = #whole;
                const VALUE: () = #inner;
            });
            format!(
                "// {text}
{pretty}"
            )
        });
        insta::assert_snapshot!(report.join(
            "
"
        ));
    }
}
