//! Expressions of our language as Python: for constraints that are exported, and for sizes that torch keeps as symbols.

use lz_schema::expr::ast::{Arithmetic, Logic};
use lz_schema::expr::{Function, Node, NodeKind, Type, Value};

/// How tightly Python binds, loosest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
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
pub(crate) fn python(node: &Node, variable: &dyn Fn(u16) -> String) -> String {
    Printer { variable }.print(node).0
}

struct Printer<'a> {
    variable: &'a dyn Fn(u16) -> String,
}

impl Printer<'_> {
    fn within(&self, node: &Node, loosest: Binding) -> String {
        let (text, binding) = self.print(node);
        if binding < loosest { format!("({text})") } else { text }
    }

    fn print(&self, node: &Node) -> (String, Binding) {
        match &node.kind {
            NodeKind::Constant(value) => constant(*value, &node.ty),
            NodeKind::Variable { index, .. } => ((self.variable)(*index), Binding::Atom),
            NodeKind::Widen(operand) => self.print(operand),
            NodeKind::Negate(operand) => (format!("-{}", self.within(operand, Binding::Sign)), Binding::Sign),
            NodeKind::Not(operand) => (format!("not {}", self.within(operand, Binding::Not)), Binding::Not),
            NodeKind::Arithmetic { operator, left, right } => {
                let (binding, tighter) = match operator {
                    Arithmetic::Add | Arithmetic::Subtract => (Binding::Sum, Binding::Product),
                    _ => (Binding::Product, Binding::Sign),
                };
                let (left, right) = (self.within(left, binding), self.within(right, tighter));
                (format!("{left} {operator} {right}"), binding)
            }
            NodeKind::Logic { operator, left, right } => {
                let (binding, tighter) = match operator {
                    Logic::And => (Binding::And, Binding::Not),
                    Logic::Or => (Binding::Or, Binding::And),
                };
                let (left, right) = (self.within(left, binding), self.within(right, tighter));
                (format!("{left} {operator} {right}"), binding)
            }
            // Comparisons chain in Python, so an operand that is one needs parentheses on either side.
            NodeKind::Compare { operator, left, right } => {
                let (left, right) = (self.within(left, Binding::Sum), self.within(right, Binding::Sum));
                (format!("{left} {operator} {right}"), Binding::Comparison)
            }
            NodeKind::Member { negated, item, list } => {
                let item = self.within(item, Binding::Sum);
                let word = if *negated { "not in" } else { "in" };
                let comma = if list.len() == 1 { "," } else { "" };
                let items: Vec<String> = list.iter().map(|item| self.print(item).0).collect();
                (format!("{item} {word} ({}{comma})", items.join(", ")), Binding::Comparison)
            }
            NodeKind::Conditional { condition, then, otherwise } => {
                let (then, condition) = (self.within(then, Binding::Or), self.within(condition, Binding::Or));
                let otherwise = self.within(otherwise, Binding::Conditional);
                (format!("{then} if {condition} else {otherwise}"), Binding::Conditional)
            }
            NodeKind::Call { function, arguments } => self.call(*function, arguments),
        }
    }

    fn call(&self, function: Function, arguments: &[Node]) -> (String, Binding) {
        let name = match (function, arguments) {
            // Rounding up is rounding down from the other side.
            (Function::CeilDiv, [left, right]) => {
                let (left, right) = (self.within(left, Binding::Sign), self.within(right, Binding::Sign));
                return (format!("-(-{left} // {right})"), Binding::Sign);
            }
            (Function::Min | Function::Max, [only]) => return self.print(only),
            (Function::Sqrt, _) => "math.sqrt",
            _ => Function::ALL.iter().find(|(_, known)| *known == function).map_or("", |(name, _)| name),
        };
        let arguments: Vec<String> = arguments.iter().map(|argument| self.print(argument).0).collect();
        (format!("{name}({})", arguments.join(", ")), Binding::Atom)
    }
}

fn constant(value: Value, ty: &Type) -> (String, Binding) {
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
    let binding = if text.starts_with('-') { Binding::Sign } else { Binding::Atom };
    (text, binding)
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
