//! Name resolution and type checking: names become slots, cases become indices, every node gets a type. Reports all
//! independent errors.
//!
//! A bare name that is not a variable may be an enum case. The enum is inferred from the other operands of the comparison, the
//! other branch of the conditional, or the expected type of the whole expression.

use super::MAX_NODES;
use super::ast::{Arithmetic, Expr, ExprKind, Link, Logic, Span};
use super::error::{ExprError, ExprErrorKind};
use super::parse::parse;
use super::program::{Program, STACK_LIMIT};
use super::scope::Scope;
use super::suggest::nearest;
use super::typed::{Function, Node, NodeKind, Typed};
use super::value::{EnumType, Type, Value};

/// Chains such as `0 < a < 9` duplicate their middle operands, so a typed tree may be larger than the untyped one.
const MAX_TYPED_NODES: usize = 4 * MAX_NODES;

/// Parses an expression, resolves its names and type-checks it.
pub fn check(text: &str, scope: &dyn Scope) -> Result<Typed, Vec<ExprError>> {
    checked(text, scope, None)
}

/// As [`check`], with an expected type: the expression may be a bare case, and an int is widened to a float.
pub fn check_expecting(text: &str, scope: &dyn Scope, expected: &Type) -> Result<Typed, Vec<ExprError>> {
    checked(text, scope, Some(expected))
}

fn checked(text: &str, scope: &dyn Scope, expected: Option<&Type>) -> Result<Typed, Vec<ExprError>> {
    let expr = parse(text).map_err(|error| vec![error])?;
    let mut checker = Checker { scope, errors: Vec::new(), nodes: 0 };
    let root = checker.group(&[&expr], expected).pop().flatten();
    let root = match root {
        Some(root) if checker.errors.is_empty() => root,
        _ => {
            checker.errors.sort_by_key(|error| (error.span.start, error.span.end));
            return Err(checker.errors);
        }
    };
    let ty = root.ty.clone();
    let mut typed = Typed { root, text: text.to_owned(), ty };
    if let Some(expected) = expected {
        typed = typed.expect(expected).map_err(|error| vec![error])?;
    }
    if Program::compile(&typed).stack_needed() > STACK_LIMIT {
        let kind = ExprErrorKind::NestingTooDeep { limit: STACK_LIMIT };
        return Err(vec![ExprError { kind, span: typed.root.span }]);
    }
    Ok(typed)
}

struct Checker<'a> {
    scope: &'a dyn Scope,
    errors: Vec<ExprError>,
    nodes: usize,
}

impl Checker<'_> {
    /// Type-checks expressions that share one enum, if any of them is an enum. Expressions that are not cases are checked first;
    /// their enum determines the cases of the others. `None` means that an error was reported.
    fn group(&mut self, members: &[&Expr], expected: Option<&Type>) -> Vec<Option<Node>> {
        let case_like: Vec<bool> = members.iter().map(|member| self.is_case_like(member)).collect();
        let mut nodes: Vec<Option<Node>> = Vec::with_capacity(members.len());
        for (member, case_like) in members.iter().zip(&case_like) {
            let node = if *case_like { None } else { self.infer(member, expected) };
            nodes.push(node);
        }
        let failed = case_like.iter().zip(&nodes).any(|(case_like, node)| !case_like && node.is_none());
        let cases = nodes.iter().flatten().map(|node| &node.ty).chain(expected).find_map(|ty| match ty {
            Type::Enum(cases) => Some(cases.clone()),
            _ => None,
        });
        match cases {
            Some(cases) => {
                for ((member, node), case_like) in members.iter().zip(&mut nodes).zip(&case_like) {
                    if *case_like {
                        *node = self.case(member, &cases);
                    }
                }
            }
            // If another operand has an error, the enum is unknown.
            None if failed => {}
            None => self.report_without_enum(members.iter().copied().zip(&case_like)),
        }
        nodes
    }

    /// Whether an expression can only be a case: a string, a name that is not a variable, or a conditional of such.
    fn is_case_like(&self, expr: &Expr) -> bool {
        match &expr.kind {
            ExprKind::Text(_) => true,
            ExprKind::Name(name) => self.scope.variable(name).is_none(),
            ExprKind::Conditional { then, otherwise, .. } => {
                self.is_case_like(then) && self.is_case_like(otherwise)
            }
            _ => false,
        }
    }

    /// Resolves a case-like expression as a case of this enum.
    fn case(&mut self, expr: &Expr, cases: &EnumType) -> Option<Node> {
        match &expr.kind {
            ExprKind::Text(name) | ExprKind::Name(name) => {
                let Some(index) = cases.iter().position(|case| case == name) else {
                    let suggestion = nearest(name, cases.iter().map(String::as_str));
                    let kind =
                        ExprErrorKind::UnknownCase { name: name.clone(), cases: cases.clone(), suggestion };
                    return self.fail(kind, expr.span);
                };
                let value = Value::Enum(u32::try_from(index).unwrap_or(u32::MAX));
                self.node(NodeKind::Constant(value), Type::Enum(cases.clone()), expr.span)
            }
            _ => self.infer(expr, Some(&Type::Enum(cases.clone()))),
        }
    }

    /// Reports case-like operands without an enum operand. If some are similar to a variable, only these are reported as
    /// misspelled: in `layuot == BSHD`, the case is correct and the variable is misspelled.
    fn report_without_enum<'e>(&mut self, members: impl Iterator<Item = (&'e Expr, &'e bool)>) {
        let mut waiting: Vec<&Expr> =
            members.filter(|(_, case_like)| **case_like).map(|(expr, _)| expr).collect();
        waiting.reverse();
        let (mut names, mut texts) = (Vec::new(), Vec::new());
        let mut known = self.scope.names();
        known.extend(["true".to_owned(), "false".to_owned()]);
        while let Some(expr) = waiting.pop() {
            match &expr.kind {
                ExprKind::Text(text) => texts.push((text, expr.span)),
                ExprKind::Name(name) => {
                    names.push((name, nearest(name, known.iter().map(String::as_str)), expr.span));
                }
                ExprKind::Conditional { then, condition, otherwise } => {
                    // The condition is checked independently.
                    let _ = self.boolean(condition, "`if`");
                    waiting.extend([&**otherwise, &**then]);
                }
                _ => {}
            }
        }
        if names.is_empty() {
            for (text, span) in texts {
                self.fail::<()>(ExprErrorKind::CaseWithoutEnum { text: text.clone() }, span);
            }
        }
        let any_near = names.iter().any(|(_, suggestion, _)| suggestion.is_some());
        for (name, suggestion, span) in names {
            if suggestion.is_some() || !any_near {
                self.fail::<()>(ExprErrorKind::UnknownName { name: name.clone(), suggestion }, span);
            }
        }
    }

    /// Type-checks one expression. `expected` is used only to infer the enum of cases; the caller checks the result type.
    fn infer(&mut self, expr: &Expr, expected: Option<&Type>) -> Option<Node> {
        let span = expr.span;
        match &expr.kind {
            ExprKind::Int(value) => self.node(NodeKind::Constant(Value::Int(*value)), Type::Int, span),
            ExprKind::Float(value) => self.node(NodeKind::Constant(Value::Float(*value)), Type::Float, span),
            ExprKind::Bool(value) => self.node(NodeKind::Constant(Value::Bool(*value)), Type::Bool, span),
            ExprKind::Name(name) => match self.scope.variable(name) {
                Some(variable) => {
                    let kind = NodeKind::Variable { index: variable.index, name: name.clone() };
                    self.node(kind, variable.ty, span)
                }
                None => self.group(&[expr], expected).pop().flatten(),
            },
            ExprKind::Text(_) => self.group(&[expr], expected).pop().flatten(),
            ExprKind::Negate(operand) => {
                let operand = self.numeric(operand, "unary `-`")?;
                let ty = operand.ty.clone();
                self.node(NodeKind::Negate(Box::new(operand)), ty, span)
            }
            ExprKind::Not(operand) => {
                let operand = self.boolean(operand, "`not`")?;
                self.node(NodeKind::Not(Box::new(operand)), Type::Bool, span)
            }
            ExprKind::Arithmetic { operator, left, right } => self.arithmetic(*operator, left, right, span),
            ExprKind::Logic { operator, left, right } => {
                let context = format!("`{operator}`");
                let (left, right) = (self.boolean(left, &context), self.boolean(right, &context));
                self.logic(*operator, left?, right?, span)
            }
            ExprKind::Compare { first, links } => self.compare(first, links),
            ExprKind::Conditional { then, condition, otherwise } => {
                let condition = self.boolean(condition, "`if`");
                let branches: [Option<Node>; 2] = self.group(&[then, otherwise], expected).try_into().ok()?;
                let [then, otherwise] = branches;
                let (then, otherwise) = self.unify(then?, otherwise?, "`if else`", span)?;
                let ty = then.ty.clone();
                let (condition, then, otherwise) =
                    (Box::new(condition?), Box::new(then), Box::new(otherwise));
                self.node(NodeKind::Conditional { condition, then, otherwise }, ty, span)
            }
            ExprKind::Call { function, function_span, arguments } => {
                self.call(function, *function_span, arguments, span)
            }
        }
    }

    fn arithmetic(&mut self, operator: Arithmetic, left: &Expr, right: &Expr, span: Span) -> Option<Node> {
        let context = format!("`{operator}`");
        let (left, right) = (self.numeric(left, &context), self.numeric(right, &context));
        let (mut left, mut right) = (left?, right?);
        let float = operator == Arithmetic::Divide || left.ty == Type::Float || right.ty == Type::Float;
        if float {
            (left, right) = (left.widened(), right.widened());
        }
        let ty = left.ty.clone();
        self.node(NodeKind::Arithmetic { operator, left: Box::new(left), right: Box::new(right) }, ty, span)
    }

    fn logic(&mut self, operator: Logic, left: Node, right: Node, span: Span) -> Option<Node> {
        let kind = NodeKind::Logic { operator, left: Box::new(left), right: Box::new(right) };
        self.node(kind, Type::Bool, span)
    }

    /// Rewrites a chain as comparisons of adjacent operands joined by `and`. All operands of the chain share one enum.
    fn compare(&mut self, first: &Expr, links: &[Link]) -> Option<Node> {
        let mut members = vec![first];
        for link in links {
            match link {
                Link::Compare { operand, .. } => members.push(operand),
                Link::Member { items, .. } => members.extend(items),
            }
        }
        let mut nodes = self.group(&members, None).into_iter();
        let mut left = nodes.next().flatten();
        let mut joined: Option<Node> = None;
        let mut failed = false;
        for (position, link) in links.iter().enumerate() {
            let comparison = match link {
                Link::Compare { operator, .. } => {
                    let right = nodes.next().flatten();
                    // The last operand is used only once and needs no copy.
                    let kept = if position + 1 < links.len() { self.copy(right.as_ref()) } else { None };
                    let comparison = match (left.take(), right) {
                        (Some(left), Some(right)) => {
                            let context = format!("`{operator}`");
                            let span = left.span.to(right.span);
                            self.ordered(operator.is_ordering(), &left, &right, &context)
                                .and_then(|()| self.unify(left, right, &context, span))
                                .and_then(|(left, right)| {
                                    let (left, right) = (Box::new(left), Box::new(right));
                                    let kind = NodeKind::Compare { operator: *operator, left, right };
                                    self.node(kind, Type::Bool, span)
                                })
                        }
                        _ => None,
                    };
                    left = kept;
                    comparison
                }
                Link::Member { negated, items, span } => {
                    let list: Vec<Option<Node>> = nodes.by_ref().take(items.len()).collect();
                    self.member(*negated, left.take(), list, *span)
                }
            };
            let Some(comparison) = comparison else {
                failed = true;
                continue;
            };
            joined = match joined {
                None => Some(comparison),
                Some(before) => {
                    let span = before.span.to(comparison.span);
                    self.logic(Logic::And, before, comparison, span)
                }
            };
        }
        if failed { None } else { joined }
    }

    /// Membership compares like `==`: as floats when the item or any member of the list is a float.
    fn member(
        &mut self,
        negated: bool,
        item: Option<Node>,
        list: Vec<Option<Node>>,
        span: Span,
    ) -> Option<Node> {
        let mut item = item?;
        let list: Option<Vec<Node>> = list.into_iter().collect();
        let mut list = list?;
        let context = if negated { "`not in`" } else { "`in`" };
        let span = item.span.to(span);
        let before = self.errors.len();
        for other in &list {
            let fits = item.ty == other.ty || (item.ty.is_numeric() && other.ty.is_numeric());
            if !fits {
                let (left, right) = (item.ty.clone(), other.ty.clone());
                let kind = ExprErrorKind::DifferentTypes { context: context.to_owned(), left, right };
                self.errors.push(ExprError { kind, span: other.span });
            }
        }
        if self.errors.len() > before {
            return None;
        }
        if item.ty == Type::Float || list.iter().any(|other| other.ty == Type::Float) {
            item = item.widened();
            list = list.into_iter().map(Node::widened).collect();
        }
        self.node(NodeKind::Member { negated, item: Box::new(item), list }, Type::Bool, span)
    }

    fn call(&mut self, name: &str, name_span: Span, arguments: &[Expr], span: Span) -> Option<Node> {
        if name == "given" {
            return self.given(arguments, span);
        }
        let Some((name, function)) = Function::ALL.into_iter().find(|(known, _)| *known == name) else {
            let known = Function::ALL.into_iter().map(|(known, _)| known).chain(["given"]);
            let kind =
                ExprErrorKind::UnknownFunction { name: name.to_owned(), suggestion: nearest(name, known) };
            return self.fail(kind, name_span);
        };
        let (expected, fits) = match function {
            Function::CeilDiv => ("two arguments", arguments.len() == 2),
            Function::Min | Function::Max => ("at least one argument", !arguments.is_empty()),
            Function::Abs | Function::Sqrt | Function::Exp | Function::Log | Function::Tanh => {
                ("one argument", arguments.len() == 1)
            }
        };
        let context = format!("`{name}`");
        let nodes: Vec<Option<Node>> = arguments
            .iter()
            .map(|argument| match function {
                Function::CeilDiv => self.typed_as(argument, &context, "int", |ty| *ty == Type::Int),
                _ => self.numeric(argument, &context),
            })
            .collect();
        if !fits {
            let kind = ExprErrorKind::WrongArgumentCount { function: name, expected, found: arguments.len() };
            return self.fail(kind, span);
        }
        let nodes: Option<Vec<Node>> = nodes.into_iter().collect();
        let mut nodes = nodes?;
        let float = function.is_float() || nodes.iter().any(|node| node.ty == Type::Float);
        if float {
            nodes = nodes.into_iter().map(Node::widened).collect();
        }
        let ty = if float { Type::Float } else { Type::Int };
        self.node(NodeKind::Call { function, arguments: nodes }, ty, span)
    }

    fn given(&mut self, arguments: &[Expr], span: Span) -> Option<Node> {
        let [argument] = arguments else {
            let (function, expected) = ("given", "one argument");
            let kind = ExprErrorKind::WrongArgumentCount { function, expected, found: arguments.len() };
            return self.fail(kind, span);
        };
        let ExprKind::Name(name) = &argument.kind else {
            return self.fail(ExprErrorKind::GivenNeedsName, argument.span);
        };
        match self.scope.is_given_name(name) {
            Some(variable) => {
                let kind = NodeKind::Variable { index: variable.index, name: format!("given({name})") };
                self.node(kind, Type::Bool, span)
            }
            None => {
                let known = self.scope.given_names();
                let suggestion = nearest(name, known.iter().map(String::as_str));
                self.fail(ExprErrorKind::UnknownInput { name: name.clone(), suggestion }, argument.span)
            }
        }
    }

    fn boolean(&mut self, expr: &Expr, context: &str) -> Option<Node> {
        self.typed_as(expr, context, "bool", |ty| *ty == Type::Bool)
    }

    fn numeric(&mut self, expr: &Expr, context: &str) -> Option<Node> {
        self.typed_as(expr, context, "int or float", Type::is_numeric)
    }

    fn typed_as(
        &mut self,
        expr: &Expr,
        context: &str,
        expected: &str,
        fits: fn(&Type) -> bool,
    ) -> Option<Node> {
        let node = self.infer(expr, None)?;
        self.require(&node, context, expected, fits)?;
        Some(node)
    }

    fn require(&mut self, node: &Node, context: &str, expected: &str, fits: fn(&Type) -> bool) -> Option<()> {
        if fits(&node.ty) {
            return Some(());
        }
        let (context, expected, found) = (context.to_owned(), expected.to_owned(), node.ty.clone());
        self.fail(ExprErrorKind::TypeMismatch { context, expected, found }, node.span)
    }

    /// Only numbers have an order.
    fn ordered(&mut self, ordering: bool, left: &Node, right: &Node, context: &str) -> Option<()> {
        if !ordering {
            return Some(());
        }
        let left = self.require(left, context, "int or float", Type::is_numeric);
        let right = self.require(right, context, "int or float", Type::is_numeric);
        left.and(right)
    }

    /// Converts two nodes to one type by widening an int if the other is a float.
    fn unify(&mut self, left: Node, right: Node, context: &str, span: Span) -> Option<(Node, Node)> {
        if left.ty == right.ty {
            return Some((left, right));
        }
        if left.ty.is_numeric() && right.ty.is_numeric() {
            return Some((left.widened(), right.widened()));
        }
        let (left, right) = (left.ty, right.ty);
        self.fail(ExprErrorKind::DifferentTypes { context: context.to_owned(), left, right }, span)
    }

    /// Copies a middle operand of a chain. Counts the nodes first, because nested chains double the size at each level.
    fn copy(&mut self, node: Option<&Node>) -> Option<Node> {
        let node = node?;
        self.grow(node.size(), node.span)?;
        Some(node.clone())
    }

    fn node(&mut self, kind: NodeKind, ty: Type, span: Span) -> Option<Node> {
        self.grow(1, span)?;
        Some(Node { kind, ty, span })
    }

    fn grow(&mut self, by: usize, span: Span) -> Option<()> {
        let before = self.nodes;
        self.nodes = self.nodes.saturating_add(by);
        if self.nodes <= MAX_TYPED_NODES {
            return Some(());
        }
        // Reported once; later failures are not reported.
        if before <= MAX_TYPED_NODES {
            let kind = ExprErrorKind::TooLarge { limit: MAX_NODES };
            self.errors.push(ExprError { kind, span });
        }
        None
    }

    fn fail<T>(&mut self, kind: ExprErrorKind, span: Span) -> Option<T> {
        self.errors.push(ExprError { kind, span });
        None
    }
}
