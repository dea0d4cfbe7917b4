//! Expressions of our language as Python: for constraints that are exported, and for sizes that torch keeps as symbols.

use lz_schema::expr::ast::{Arithmetic, Logic};
use lz_schema::expr::{Function, Node, NodeKind, Type, Value};

/// Operator precedence in Python, lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Precedence {
    Conditional,
    Or,
    And,
    Not,
    Comparison,
    Sum,
    Product,
    Sign,
    Atom,
}

/// The Python text of a node; `variable` gives an expression for each slot, which is put in as an atom.
pub fn python(node: &Node, variable: &dyn Fn(u16) -> String) -> String {
    Printer { variable }.print(node).0
}

struct Printer<'a> {
    variable: &'a dyn Fn(u16) -> String,
}

impl Printer<'_> {
    fn within(&self, node: &Node, lowest: Precedence) -> String {
        let (text, precedence) = self.print(node);
        if precedence < lowest { format!("({text})") } else { text }
    }

    fn print(&self, node: &Node) -> (String, Precedence) {
        match &node.kind {
            NodeKind::Constant(value) => constant(*value, &node.ty),
            NodeKind::Variable { index, .. } => ((self.variable)(*index), Precedence::Atom),
            NodeKind::Widen(operand) => self.print(operand),
            NodeKind::Negate(operand) => {
                (format!("-{}", self.within(operand, Precedence::Sign)), Precedence::Sign)
            }
            NodeKind::Not(operand) => {
                (format!("not {}", self.within(operand, Precedence::Not)), Precedence::Not)
            }
            NodeKind::Arithmetic { operator, left, right } => {
                let (precedence, tighter) = match operator {
                    Arithmetic::Add | Arithmetic::Subtract => (Precedence::Sum, Precedence::Product),
                    _ => (Precedence::Product, Precedence::Sign),
                };
                let (left, right) = (self.within(left, precedence), self.within(right, tighter));
                (format!("{left} {operator} {right}"), precedence)
            }
            NodeKind::Logic { operator, left, right } => {
                let (precedence, tighter) = match operator {
                    Logic::And => (Precedence::And, Precedence::Not),
                    Logic::Or => (Precedence::Or, Precedence::And),
                };
                let (left, right) = (self.within(left, precedence), self.within(right, tighter));
                (format!("{left} {operator} {right}"), precedence)
            }
            // Comparisons chain in Python, so an operand that is one needs parentheses on either side.
            NodeKind::Compare { operator, left, right } => {
                let (left, right) = (self.within(left, Precedence::Sum), self.within(right, Precedence::Sum));
                (format!("{left} {operator} {right}"), Precedence::Comparison)
            }
            NodeKind::Member { negated, item, list } => {
                let item = self.within(item, Precedence::Sum);
                let word = if *negated { "not in" } else { "in" };
                let comma = if list.len() == 1 { "," } else { "" };
                let items: Vec<String> = list.iter().map(|item| self.print(item).0).collect();
                (format!("{item} {word} ({}{comma})", items.join(", ")), Precedence::Comparison)
            }
            NodeKind::Conditional { condition, then, otherwise } => {
                let (then, condition) =
                    (self.within(then, Precedence::Or), self.within(condition, Precedence::Or));
                let otherwise = self.within(otherwise, Precedence::Conditional);
                (format!("{then} if {condition} else {otherwise}"), Precedence::Conditional)
            }
            NodeKind::Call { function, arguments } => self.call(*function, arguments),
        }
    }

    fn call(&self, function: Function, arguments: &[Node]) -> (String, Precedence) {
        let name = match (function, arguments) {
            // Rounding up is rounding down from the other side.
            (Function::CeilDiv, [left, right]) => {
                let (left, right) =
                    (self.within(left, Precedence::Sign), self.within(right, Precedence::Sign));
                return (format!("-(-{left} // {right})"), Precedence::Sign);
            }
            (Function::Min | Function::Max, [only]) => return self.print(only),
            (Function::Sqrt, _) => "math.sqrt",
            (Function::Exp, _) => "math.exp",
            (Function::Log, _) => "math.log",
            (Function::Tanh, _) => "math.tanh",
            _ => Function::ALL.iter().find(|(_, known)| *known == function).map_or("", |(name, _)| name),
        };
        let arguments: Vec<String> = arguments.iter().map(|argument| self.print(argument).0).collect();
        (format!("{name}({})", arguments.join(", ")), Precedence::Atom)
    }
}

fn constant(value: Value, ty: &Type) -> (String, Precedence) {
    let text = match (value, ty) {
        (Value::Bool(value), _) => if value { "True" } else { "False" }.to_owned(),
        (Value::Enum(case), Type::Enum(cases)) => {
            format!(
                "'{}'",
                usize::try_from(case).ok().and_then(|case| cases.get(case)).map_or("", String::as_str)
            )
        }
        (value, _) => value.to_string(),
    };
    let precedence = if text.starts_with('-') { Precedence::Sign } else { Precedence::Atom };
    (text, precedence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lz_schema::expr::{VariableTable, check};

    fn printed(text: &str) -> String {
        let mut table = VariableTable::new();
        let names = ["a", "b", "c"];
        for name in names {
            table.add(name, Type::Int);
        }
        table.add("layout", Type::enumeration(["NHD", "HND"]));
        let typed = check(text, &table).unwrap_or_else(|errors| panic!("{errors:?}"));
        python(&typed.root, &|slot| names.get(usize::from(slot)).map_or("'HND'", |name| name).to_owned())
    }

    #[test]
    fn python_means_the_same() {
        assert_eq!(printed("(a + b) * c - (a - b)"), "(a + b) * c - (a - b)");
        assert_eq!(printed("ceil_div(a + 1, b) + 1"), "-(-(a + 1) // b) + 1");
        assert_eq!(
            printed("a in [1, 2] and not (b == 1 or c == 2)"),
            "a in (1, 2) and not (b == 1 or c == 2)"
        );
        assert_eq!(printed("a not in [3]"), "a not in (3,)");
        assert_eq!(printed("0 < a < 9"), "0 < a and a < 9");
        assert_eq!(printed("a if layout == NHD else -b"), "a if 'HND' == 'NHD' else -b");
        assert_eq!(printed("1 / sqrt(a) > 0.5"), "1.0 / math.sqrt(a) > 0.5");
        assert_eq!(printed("(a == 1) == (b == 1)"), "(a == 1) == (b == 1)");
        assert_eq!(printed("max(min(a), b, abs(c))"), "max(a, b, abs(c))");
        assert_eq!(printed("a // (b // c) % 2"), "a // (b // c) % 2");
    }
}
