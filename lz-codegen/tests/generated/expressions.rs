// Made by `LZ_BLESS=1 cargo test -p lz-codegen --test expressions_agree`. Do not edit.

#![allow(warnings, clippy::all)]

use lz_schema::expr::{EvalError, Value};
pub struct Variables {
    pub a: i64,
    pub b: i64,
    pub target_sm: i64,
    pub x: f64,
    pub y: f64,
    pub p: bool,
    pub q: bool,
    pub layout: u32,
    pub mode: u32,
    pub given_mask: bool,
}
pub type Evaluate = fn(&Variables) -> Result<Value, EvalError>;
pub const EXPRESSIONS: &[(&str, Evaluate)] = &[
    ("sqrt((0 % 7))", expression_0),
    (
        "((not (given(mask) or FALSE)) == ((layout if given(mask) else \"NHD\") == layout))",
        expression_1,
    ),
    (
        "(((9223372036854775807 % a - 1) + ceil_div(ceil_div(128, a), -b)) / 0.5)",
        expression_2,
    ),
    ("((layout not in [BHSD, 'BSHD']) or not p or true)", expression_3),
    (
        "(((-3 % -9223372036854775808) / (-3 if q else b)) == (-0.5 / ceil_div(a, 1)) >= ((2 if given(mask) else a) % (2 % b)))",
        expression_4,
    ),
    ("FALSE", expression_5),
    ("q", expression_6),
    (
        "(((target.sm if given(mask) else b) < (x % 2.5E+3)) and ((true == true) or (1e300 <= target.sm)))",
        expression_7,
    ),
    (
        "((((a // -3) if (1e-5 >= -9223372036854775808) else (9223372036854775807 % a)) % -3) == (7 if (-y > (0 // 7 - -3)) else (128 // 128 % 9223372036854775807)))",
        expression_8,
    ),
    (
        "((a % 2 - target.sm) in [0, (target.sm * 9223372036854775807 // 1), 128])",
        expression_9,
    ),
    (
        "(ceil_div((-3 % 128), (b if FALSE else -3)) < (min(2.5E+3, 0.5) // (128 // 0)) >= ((0.5 // -3) % (-9223372036854775808 + 0)))",
        expression_10,
    ),
    ("(layout != \"NHD\")", expression_11),
    ("((b * a % -9223372036854775808) * (target.sm % 2))", expression_12),
    ("(abs(x) not in [1, (-2 // (1 // -9223372036854775808)), 0])", expression_13),
    ("7", expression_14),
    ("(layout if (given(mask) == q) else NHD)", expression_15),
    (
        "((ceil_div(7, target.sm) - ceil_div(1, -3)) == ((a * 0) % 1) != abs((1e-5 % 2)))",
        expression_16,
    ),
    (
        "((abs((x if true else 2.5E+3)) if ((-3 % b) == ceil_div(9223372036854775807, 2)) else ((0.0 // 2) if (a in [x, 2, b]) else 0.0)) in [2, max(0, target.sm, ceil_div((target.sm * -3), min(7, -9223372036854775808))), 1])",
        expression_17,
    ),
    (
        "(abs(target.sm) if (p if given(mask) else true) else max(2, -9223372036854775808, -9223372036854775808))",
        expression_18,
    ),
    ("((layout if (true and q) else 'BSHD') not in ['BSHD', NHD])", expression_19),
    (
        "((7 % 2 + 7) > ((min(target.sm) if (x == -9223372036854775808) else (2 - 1)) * ((a if true else 0) if (layout != BSHD) else -1)))",
        expression_20,
    ),
    ("(FALSE and not given(mask) or given(mask))", expression_21),
    ("(((2.5E+3 - b) * ceil_div(2, target.sm)) + -sqrt(-3))", expression_22),
    (
        "((not ((x != 7) if (128 < 0.0) else (layout != \"NHD\"))) == ((-0.0 if (b > 0.0) else 1e-5) in [y, -(-3 % -9223372036854775808), b]))",
        expression_23,
    ),
    ("max(min(1e300, y), y, (0.0 + x))", expression_24),
    ("(((0 == 128) == (q or q)) and not p and p)", expression_25),
    (
        "(layout if (given(mask) if ((given(mask) if true else true) and (FALSE and not true or p)) else ((q if p else q) and not true or p)) else BHSD)",
        expression_26,
    ),
    ("((q or given(mask)) and not FALSE and given(mask))", expression_27),
    (
        "((-b < ceil_div(128, -9223372036854775808) != (a if given(mask) else 128)) if (layout != \"NHD\") else (layout == layout))",
        expression_28,
    ),
    (
        "((-(-9223372036854775808 + target.sm) % min((target.sm + 1))) - ((min(b, a) * (b % a)) * (-3 * 9223372036854775807 // -3)))",
        expression_29,
    ),
    ("-(1e300 / 2)", expression_30),
    ("(layout if (layout != 'BSHD') else 'BSHD')", expression_31),
    (
        "(max(ceil_div((9223372036854775807 if FALSE else -9223372036854775808), 128), 128, (2 // 9223372036854775807 % -3)) // -9223372036854775808)",
        expression_32,
    ),
    ("(not FALSE)", expression_33),
    (
        "(((2.5E+3 / b) * (2 * 0)) not in [-9223372036854775808, -ceil_div(7, -3), a])",
        expression_34,
    ),
    (
        "((not ((given(mask) or true) and (not given(mask)))) if ((layout if (target.sm not in [0.5, target.sm, 2.5E+3]) else 'BSHD') not in ['BSHD', 'BSHD']) else (((b - 0) not in [1, (b + -9223372036854775808), -9223372036854775808]) if (layout == (layout if given(mask) else BHSD)) else ((-9223372036854775808 * -9223372036854775808) not in [b, (1 - 2 * 2), 0])))",
        expression_35,
    ),
    ("((0.5 - target.sm) == 2 < 1e-5)", expression_36),
    ("(min(min(1e-5)) != (ceil_div(7, 7) % ceil_div(a, -3)))", expression_37),
    (
        "(ceil_div(((9223372036854775807 - 128 // a) // ceil_div(-3, 2)), (-9223372036854775808 if (FALSE == p) else ceil_div(0, 9223372036854775807))) < max(ceil_div(max(b, 9223372036854775807, a), min(1)), b, (1 // 1 * a)) != max((x // 2), x, --y))",
        expression_38,
    ),
    ("((x if given(mask) else 1e300) < (1 + b))", expression_39),
    ("(b / sqrt((1e-5 if FALSE else x)))", expression_40),
    (
        "(ceil_div(((2 + target.sm) - (target.sm % 7)), min(7)) * ((9223372036854775807 % 9223372036854775807 - target.sm) if ((not q) or (q if given(mask) else FALSE)) else ((1 % -9223372036854775808 // 0) * min(7))))",
        expression_41,
    ),
    ("p", expression_42),
    ("-((-3 // target.sm) / (128 / 2))", expression_43),
    ("(layout if given(mask) else 'BSHD')", expression_44),
    ("layout", expression_45),
    (
        "((min(a) - (1 * 0)) not in [1, (max(128, 128, 2) if (p or not q and p) else 9223372036854775807), 1])",
        expression_46,
    ),
    (
        "(((not (FALSE == p)) if ((2 < 9223372036854775807 < 1e-5) or (true and true)) else q) == (((0.5 + y) - abs(0.5)) <= ((a + -3) - min(target.sm, 9223372036854775807))))",
        expression_47,
    ),
    (
        "(ceil_div(target.sm, -9223372036854775808) != max(-9223372036854775808, a, 128))",
        expression_48,
    ),
    (
        "(ceil_div(a, ceil_div(0, 2)) != ((2 - target.sm) / (target.sm * 128)))",
        expression_49,
    ),
    (
        "(layout if (((0 not in [0, x, 9223372036854775807]) if (0.5 == 128 >= target.sm) else (FALSE or q)) and (9223372036854775807 != abs(a))) else BHSD)",
        expression_50,
    ),
    ("((true or not true and FALSE) == (layout != \"NHD\"))", expression_51),
    ("(ceil_div(target.sm, (-3 // b)) / min(-9223372036854775808))", expression_52),
    (
        "((0 if ((0.5 < 2 < 0) == (FALSE or FALSE)) else max((7 - 7 - 2), 0, (7 % 9223372036854775807))) <= (min(sqrt(1)) + ((0.0 - -9223372036854775808) % (2.5E+3 // x))))",
        expression_53,
    ),
    ("min(1e300)", expression_54),
    ("-3", expression_55),
    (
        "((((not FALSE) or (true == FALSE)) if (ceil_div(0, 7) <= -9223372036854775807 != -128) else ((not q) and (q if p else q))) and (((128 % 2) == (0.0 - 0) >= (2 / 0)) and p))",
        expression_56,
    ),
    ("(layout if (given(mask) if FALSE else given(mask)) else NHD)", expression_57),
    ("(0.5 < ceil_div((a % b % 7), -0) != 9223372036854775807)", expression_58),
    (
        "((((a not in [b, -9223372036854775808, 128]) if (128 not in [target.sm, 2.5E+3, y]) else (x == -9223372036854775808)) == (min(x, y) <= (y if q else x))) or (((not given(mask)) == (true or not true or true)) if (mode == \"exact\") else (ceil_div(target.sm, 128) > -b)))",
        expression_59,
    ),
    ("((a if given(mask) else a) in [target.sm, (1e-5 / a), target.sm])", expression_60),
    (
        "(((a // 2 // a) / (0 - 0 + b)) if (not (FALSE if given(mask) else given(mask))) else ((a if true else -9223372036854775808) / 128))",
        expression_61,
    ),
    (
        "((-3 if ((FALSE or FALSE) if (given(mask) or given(mask)) else (target.sm < 9223372036854775807 < 7)) else ceil_div(-9223372036854775808, (target.sm % 9223372036854775807 // 128))) // (((1 + b) + 128) - ((b + b) * abs(1))))",
        expression_62,
    ),
    (
        "((given(mask) and not q and q) if (given(mask) and FALSE) else (0.0 <= -3 < -9223372036854775808))",
        expression_63,
    ),
    ("((-a + (target.sm % b + 0)) / sqrt(min(-3)))", expression_64),
    ("((-max(2, 7, 1) - -9223372036854775808) <= target.sm)", expression_65),
    ("((a % 7) / 0)", expression_66),
    ("(mode == \"exact\")", expression_67),
    (
        "(not (((p == true) or not given(mask) and p) if ((b == -3) or (2 not in [0, target.sm, 1e-5])) else ((p if p else p) if (not FALSE) else (layout not in [BHSD, BHSD]))))",
        expression_68,
    ),
    ("(layout if (9223372036854775807 != target.sm) else BHSD)", expression_69),
    (
        "(((-9223372036854775808 / 128) + (0.0 % 0.0)) * ((a if q else 128) if (x >= 2.5E+3) else ceil_div(target.sm, 9223372036854775807)))",
        expression_70,
    ),
    (
        "(not (((a % -3 + b) not in [7, ceil_div(a, 2), 128]) == ((7 % 1) >= min(y))))",
        expression_71,
    ),
    (
        "(-9223372036854775807 + max(9223372036854775807, a, 9223372036854775807))",
        expression_72,
    ),
    ("(-3 / ((1 % -9223372036854775808) / (x // -3)))", expression_73),
    (
        "((mode == \"exact\") == (((2.5E+3 if given(mask) else y) - (1e300 / 128)) not in [2.5E+3, ((y * b) if (layout == layout) else (1e300 + 0.0)), 2.5E+3]))",
        expression_74,
    ),
    ("(layout if (FALSE and not p or true) else BHSD)", expression_75),
    (
        "((-9223372036854775807 - (a if p else a)) - ceil_div(ceil_div(1, 2), (7 * 1)))",
        expression_76,
    ),
    (
        "((abs((1e-5 - -9223372036854775808)) + ((0 + b) % max(2, 128, -9223372036854775808))) if (((q or true) and not given(mask) or true) if ((0.0 if q else 1e300) != (1e300 % 1e-5)) else ((target.sm > 1) == (given(mask) or given(mask)))) else -0.5)",
        expression_77,
    ),
    ("(-7 / (128 // target.sm))", expression_78),
    (
        "(ceil_div((0 * 7 + 2), (0 * -3 % 9223372036854775807)) % ((a if true else 0) if (-9223372036854775808 in [9223372036854775807, y, b]) else (a if true else target.sm)))",
        expression_79,
    ),
    (
        "((layout if ((-9223372036854775808 - 0) < ceil_div(-3, 1)) else BHSD) == layout)",
        expression_80,
    ),
    ("given(mask)", expression_81),
    (
        "(((-3 // 2) + (-9223372036854775808 if given(mask) else 7)) <= (1 + ceil_div(a, 1)) < 2.5E+3)",
        expression_82,
    ),
    (
        "(((a + b + 1) // (b // b % -9223372036854775808)) + (((1 - -9223372036854775808) - -target.sm) - min((b % -9223372036854775808))))",
        expression_83,
    ),
    ("((p or true) == (0.5 in [1, y, 0.0]))", expression_84),
    (
        "(ceil_div(abs(9223372036854775807), max(target.sm, a, 0)) <= (128 * 0 - -3) < (-9223372036854775808 + ceil_div(target.sm, -9223372036854775808)))",
        expression_85,
    ),
    (
        "((ceil_div(target.sm, b) < ((0.5 / x) // 9223372036854775807) != ceil_div(b, (target.sm % 128))) or (((1e-5 * target.sm) > (9223372036854775807 - 0)) == FALSE))",
        expression_86,
    ),
    ("(layout if (true or not true and p) else 'BSHD')", expression_87),
    (
        "(ceil_div(-3, -3) // ((-9223372036854775808 + 2) if (FALSE == FALSE) else (a + 7)))",
        expression_88,
    ),
    (
        "(((sqrt(7) / (target.sm // -3 % -3)) / ceil_div((128 + 2), 9223372036854775807)) * min((min(9223372036854775807, -3) if (FALSE and not FALSE or true) else (9223372036854775807 * 9223372036854775807 // -3))))",
        expression_89,
    ),
    ("(layout if (true if q else p) else BHSD)", expression_90),
    ("min(-(2 * target.sm), -(target.sm % 2))", expression_91),
    (
        "(ceil_div(((128 % -9223372036854775808) // abs(0)), ((b // -3) % (7 // -9223372036854775808))) / (1e-5 / ((7 * b) if (given(mask) and p) else max(b, -9223372036854775808, 2))))",
        expression_92,
    ),
    ("(target.sm % 2 % -9223372036854775808)", expression_93),
    (
        "(((2 + target.sm) / (-3 / x)) - ((7 - 9223372036854775807) - (-3 % 9223372036854775807)))",
        expression_94,
    ),
    (
        "(not ((ceil_div(-3, target.sm) % (128 - 1 + 7)) <= ((2.5E+3 % 0) * (9223372036854775807 + 2))))",
        expression_95,
    ),
    ("9223372036854775807", expression_96),
    (
        "(-(-3 if FALSE else -9223372036854775808) >= ceil_div((9223372036854775807 * a), 7))",
        expression_97,
    ),
    ("abs(sqrt(((b + 2 % 1) - (target.sm if q else b))))", expression_98),
    ("(layout if FALSE else \"NHD\")", expression_99),
    ("-((-9223372036854775808 - 0) // -2)", expression_100),
    (
        "((a in [7, (abs(1e300) / (9223372036854775807 if q else 128)), 2]) or (not ((layout if p else 'BSHD') == (layout if q else NHD))))",
        expression_101,
    ),
    ("((b - 1) % (128 // -9223372036854775808))", expression_102),
    (
        "(((a // 9223372036854775807 + 9223372036854775807) // --9223372036854775808) - -9223372036854775808)",
        expression_103,
    ),
    (
        "(layout if ((not (p == given(mask))) == ((mode == fast) or (-9223372036854775808 == 0 < b))) else BSHD)",
        expression_104,
    ),
    ("(-x > (2.5E+3 if FALSE else 0.0))", expression_105),
    ("(((-3 < 2) == (given(mask) or p)) or (-1 < min(1) < (1e-5 * y)))", expression_106),
    (
        "(-max((7 / 9223372036854775807), x, (y if true else y)) * (min((1 - 0)) if ((a // 9223372036854775807) != (1e300 * -3)) else (max(9223372036854775807, 0, target.sm) if (1e300 <= 7 < x) else (-9223372036854775808 * 2))))",
        expression_107,
    ),
    ("((target.sm + 9223372036854775807 + a) % -7)", expression_108),
    ("(not (0 == (0.0 // 1e300) >= (b - 128)))", expression_109),
    ("(2 - 9223372036854775807 - 128)", expression_110),
    ("(layout if (-3 in [2.5E+3, 0.5, b]) else 'BSHD')", expression_111),
    ("(((b - target.sm) % (9223372036854775807 - 1)) + (7 + -3 + 128))", expression_112),
    (
        "((0.0 + (max(0.0, 1e300, 1e300) + (2 if q else target.sm))) if (x in [0.5, ((x / x) * (128 - -9223372036854775808)), 2.5E+3]) else min((-9223372036854775807 / (2.5E+3 % 2)), -(x * 9223372036854775807)))",
        expression_113,
    ),
    (
        "((9223372036854775807 if given(mask) else 0) - min(9223372036854775807))",
        expression_114,
    ),
    ("((-b not in [b, (x % 1e300), b]) or not true and q)", expression_115),
    (
        "((a < -2.5E+3 != (0 % ceil_div(7, target.sm))) or ((layout if (layout == layout) else NHD) not in [\"NHD\", 'BSHD']))",
        expression_116,
    ),
    ("((-3 - -9223372036854775808) < (0 + 128) != max(0.5, x, 2.5E+3))", expression_117),
    ("((-x < 0.5) and not FALSE and p)", expression_118),
    ("a", expression_119),
    ("(not (FALSE if given(mask) else q))", expression_120),
    (
        "(-(0 / 2.5E+3) % ((-9223372036854775808 if given(mask) else 9223372036854775807) // ceil_div(1, 7)))",
        expression_121,
    ),
    ("(sqrt((-y // (0.5 / -3))) - (2 - target.sm // 128))", expression_122),
    ("ceil_div((128 % 1), -128)", expression_123),
    (
        "(max(min(128), 7, b) in [9223372036854775807, 2, 9223372036854775807])",
        expression_124,
    ),
    (
        "((ceil_div((b if given(mask) else 2), (-9223372036854775808 // target.sm)) >= sqrt(sqrt(1e300))) and (((given(mask) and given(mask)) == p) and ((p or given(mask)) == (p or p))))",
        expression_125,
    ),
    ("(layout not in ['BSHD', BHSD])", expression_126),
    (
        "(layout if ((x != 9223372036854775807) or (FALSE and given(mask))) else NHD)",
        expression_127,
    ),
    (
        "(not ((y <= (0 - target.sm * -9223372036854775808) != (128 - b)) and ((0.5 < 1 < target.sm) or (p == p))))",
        expression_128,
    ),
    ("sqrt(sqrt(128))", expression_129),
    ("(((b * b) / min(0)) + (0 - 9223372036854775807 % b))", expression_130),
    ("(((x > ceil_div(a, b)) and not given(mask) or q) == (not p))", expression_131),
    ("((true and given(mask)) == (given(mask) == q))", expression_132),
    ("(not ((given(mask) if p else q) == (given(mask) and p)))", expression_133),
    (
        "(abs((-1 % (9223372036854775807 - 0 // 9223372036854775807))) - ((0 + 1 // 1) // ((b - 128 - 7) if (given(mask) or true) else max(a, b, -3))))",
        expression_134,
    ),
    ("((7 % 0) == (1e300 * 7))", expression_135),
    ("-min((a + 1), (-9223372036854775808 + -3))", expression_136),
    ("true", expression_137),
    ("((128 * -3) + -3)", expression_138),
    ("min(((y // 1) - min(0)))", expression_139),
    (
        "(ceil_div(min((7 - 2 - 9223372036854775807)), (0 % -9223372036854775808 // b)) in [2, (target.sm - ((9223372036854775807 // 7) // (1 // 9223372036854775807 // 9223372036854775807))), b])",
        expression_140,
    ),
    ("(not (true or FALSE))", expression_141),
    (
        "(((1 * a) + min(target.sm, 0)) <= ((2.5E+3 if given(mask) else 1e300) if (q and given(mask)) else (1e300 // y)))",
        expression_142,
    ),
    (
        "min((((x if given(mask) else 0.5) - b) + ((128 * -9223372036854775808) % max(-9223372036854775808, 1, 9223372036854775807))), 1e300)",
        expression_143,
    ),
    ("((true and p) if (given(mask) == given(mask)) else (y < 2.5E+3))", expression_144),
    (
        "(((p if true else given(mask)) and (not FALSE)) == ((x in [0.0, 0, 0.5]) if (target.sm < 7) else (p and not true or true)))",
        expression_145,
    ),
    (
        "(min((min(9223372036854775807) + (7 // b % 7))) <= ((-1 / ceil_div(9223372036854775807, 0)) + (-target.sm if (p and p) else 128)))",
        expression_146,
    ),
    ("2.5E+3", expression_147),
    ("x", expression_148),
    (
        "(layout if ((--9223372036854775808 < -x) == ((0 <= -3 >= b) or not q and true)) else \"NHD\")",
        expression_149,
    ),
    ("(layout if (not FALSE) else 'BSHD')", expression_150),
    ("((ceil_div(-3, a) > -2.5E+3) and not FALSE or true)", expression_151),
    ("((mode == fast) == true)", expression_152),
    ("((FALSE and not p and given(mask)) and (q == true))", expression_153),
    ("-ceil_div((9223372036854775807 * 2), (b // a))", expression_154),
    (
        "(target.sm % (min(abs(9223372036854775807), (-3 - -3)) + ceil_div(ceil_div(-3, 2), (-3 * 7 - 9223372036854775807))))",
        expression_155,
    ),
    ("((x / 1e300) >= (2.5E+3 // b))", expression_156),
    ("min(min(128, (2 * 9223372036854775807)))", expression_157),
    ("(-(0.5 * (b // 9223372036854775807)) * 0)", expression_158),
    ("(layout if given(mask) else BSHD)", expression_159),
    ("(true or not true or FALSE)", expression_160),
    ("(not true)", expression_161),
    (
        "((128 if true else a) not in [9223372036854775807, (0.0 if q else y), 0.0])",
        expression_162,
    ),
    ("max(max((1e300 if q else y), 1e-5, (1e300 / a)), 1e-5, y)", expression_163),
    ("ceil_div(-9223372036854775808, 7)", expression_164),
    ("((7 <= a < 1) and (given(mask) == FALSE))", expression_165),
    ("(ceil_div(ceil_div(0, 1), abs(1)) - ceil_div((1 % 1), -b))", expression_166),
    (
        "(-ceil_div((target.sm if q else 7), (target.sm if FALSE else b)) == (((1 if given(mask) else 9223372036854775807) + (9223372036854775807 // target.sm)) / -(1 % 2)) >= (7 if ((mode == fast) if (true or q) else (y <= y >= -3)) else ceil_div(a, (a % -9223372036854775808))))",
        expression_167,
    ),
    ("((a not in [0, 1e300, a]) if (p or not q or true) else (b >= y))", expression_168),
    ("-sqrt((9223372036854775807 // 7))", expression_169),
    (
        "(layout if (max((1e300 / 1), 2.5E+3, (1 / 1e300)) != (-a + (9223372036854775807 % 1))) else BHSD)",
        expression_170,
    ),
    ("((b - target.sm // 0) % (target.sm % 9223372036854775807 % 2))", expression_171),
    ("(min(sqrt(b), (2.5E+3 * 2)) % ((2.5E+3 // 0) * 0))", expression_172),
    (
        "(min((max(x, x, 1e-5) / -128)) < abs(ceil_div((1 // -3), (0 + 0))) < (((a % 1 * 0) % ceil_div(b, 2)) if (mode == \"exact\") else ceil_div(128, (7 - 128))))",
        expression_173,
    ),
    ("(ceil_div(b, a) * -target.sm)", expression_174),
    ("((ceil_div(7, 0) / -y) // (0 / max(1, b, -3)))", expression_175),
    (
        "(abs(((x // 9223372036854775807) % max(-9223372036854775808, 2, 128))) if (p or ((not true) or not p or q)) else (ceil_div(1, ceil_div(7, -3)) / (abs(128) * --9223372036854775808)))",
        expression_176,
    ),
    ("(target.sm // b - 128)", expression_177),
    (
        "(layout if ((layout != 'BSHD') if (0 < 2) else (1e300 < 9223372036854775807 >= a)) else \"NHD\")",
        expression_178,
    ),
    (
        "(layout if (not ((not given(mask)) == (p or not given(mask) and given(mask)))) else BHSD)",
        expression_179,
    ),
    ("-target.sm", expression_180),
    (
        "(((b if q else 2) if (given(mask) or not given(mask) or true) else (target.sm - 2)) if (-2 in [-9223372036854775808, (7 % -3), b]) else (target.sm if given(mask) else (a + b)))",
        expression_181,
    ),
    ("1e300", expression_182),
    ("((not p) and not true and p)", expression_183),
    (
        "((-a / ceil_div(a, 7)) in [9223372036854775807, abs(y), 9223372036854775807])",
        expression_184,
    ),
    (
        "-(ceil_div((7 + 1), -2) // max((9223372036854775807 * 0), b, (-3 - -9223372036854775808)))",
        expression_185,
    ),
    ("((layout if true else NHD) not in ['BSHD', 'BSHD'])", expression_186),
    ("((sqrt(0.0) / x) // -(1e-5 if true else y))", expression_187),
    ("(p and not p or true)", expression_188),
    ("((FALSE or true) == (FALSE or not true and p))", expression_189),
    (
        "(((layout if given(mask) else 'BSHD') not in [BSHD, \"NHD\"]) or q)",
        expression_190,
    ),
    (
        "-(((0 % 2) + -0) / (0.0 // (-9223372036854775808 if given(mask) else target.sm)))",
        expression_191,
    ),
    ("(ceil_div(-3, target.sm) > (-3 // 2))", expression_192),
    (
        "(((q or q) == (p and not q and FALSE)) if ((0 in [128, a, 2]) or (target.sm == 7)) else (not (layout == layout)))",
        expression_193,
    ),
    (
        "min((-(a * target.sm) + ceil_div(-9223372036854775807, ceil_div(b, -3))), (-3 + ((9223372036854775807 // 0) // (-9223372036854775808 // 7 * b))))",
        expression_194,
    ),
    ("(not (FALSE and not true and FALSE))", expression_195),
    ("((b % (-9223372036854775808 % 9223372036854775807)) + min(-0))", expression_196),
    (
        "-(1e300 if ((given(mask) and not true and p) if (q or not q or p) else (given(mask) or not q and FALSE)) else abs((7 / b)))",
        expression_197,
    ),
    ("((0.0 - target.sm) if (2 < target.sm) else sqrt(1e-5))", expression_198),
    ("128", expression_199),
    (
        "((0.0 in [-9223372036854775808, ((target.sm // 128) * min(7, b)), target.sm]) == (layout == (layout if (true if given(mask) else true) else BSHD)))",
        expression_200,
    ),
    ("((2 if q else a) > sqrt(y))", expression_201),
    ("(ceil_div(abs(1), b) // a)", expression_202),
    (
        "((1e-5 % ((1e300 if FALSE else 1e300) // (b // 2))) if (not ((9223372036854775807 != 128) if (p and not FALSE and q) else (layout not in [\"NHD\", 'BSHD']))) else ((sqrt(2) * (1e-5 - 2)) % ((1 + 0) - --9223372036854775808)))",
        expression_203,
    ),
    (
        "ceil_div((9223372036854775807 - 7), ceil_div(-9223372036854775808, 128))",
        expression_204,
    ),
    (
        "(((layout not in [NHD, BHSD]) and (2.5E+3 <= 1e-5)) if ((9223372036854775807 * -9223372036854775808 - b) <= (x * a) < (-9223372036854775808 * -3 * -9223372036854775808)) else (ceil_div(-3, 1) not in [x, (0.5 % -9223372036854775808), a]))",
        expression_205,
    ),
    (
        "(layout if ((not (layout != \"NHD\")) or (not (not p))) else BHSD)",
        expression_206,
    ),
    ("(-0.0 <= abs(7) != (1 if true else 1))", expression_207),
    (
        "min(-9223372036854775807, ceil_div(-7, (-9223372036854775808 - 128 % 9223372036854775807)))",
        expression_208,
    ),
    ("(layout not in [BHSD, BSHD])", expression_209),
    ("(layout if (p and given(mask)) else NHD)", expression_210),
    ("(y < sqrt((a + -9223372036854775808)) >= abs((7 - 128)))", expression_211),
    (
        "(b + min(--1, (ceil_div(a, -9223372036854775808) * (a if true else 1))))",
        expression_212,
    ),
    ("(x * max(0.0, 2.5E+3, 0.5))", expression_213),
    (
        "((ceil_div(7, -9223372036854775808) == -2) if ((true or given(mask)) and not true or p) else q)",
        expression_214,
    ),
    (
        "(min((ceil_div(target.sm, 2) + (1 if true else -3)), ((a % target.sm) % (1 + target.sm))) % -(1 if (target.sm in [-9223372036854775808, 0, 0.0]) else -0))",
        expression_215,
    ),
    (
        "((y * 9223372036854775807) if (FALSE and given(mask)) else (0.0 % b))",
        expression_216,
    ),
    ("(not (not (not p)))", expression_217),
    ("(q or not FALSE or given(mask))", expression_218),
    ("((7 * -9223372036854775808 % 0) - (2 * -9223372036854775808))", expression_219),
    (
        "(ceil_div(-3, 2) + ceil_div((a // 7), (9223372036854775807 * a)))",
        expression_220,
    ),
    ("(min(x, min((x / 1))) == (-3 - 128 * 128))", expression_221),
    ("((b - -3) < (x if p else x) < 0)", expression_222),
    (
        "(((-9223372036854775808 % target.sm) - (1 - 128 * -3)) < sqrt(min(2, -9223372036854775808)))",
        expression_223,
    ),
    ("((not ((128 == -3) and (0 in [x, 2.5E+3, 7]))) or given(mask))", expression_224),
    ("sqrt((-3 // b * 1))", expression_225),
    (
        "(-9223372036854775808 > ((target.sm // 9223372036854775807 * 7) + (2 if q else -9223372036854775808)))",
        expression_226,
    ),
    (
        "((((2.5E+3 if given(mask) else 1e300) if (128 > 7) else y) - max(ceil_div(-3, -3), target.sm, -2)) - sqrt(((-9223372036854775808 + target.sm * 0) % abs(0))))",
        expression_227,
    ),
    ("ceil_div((2 + target.sm), (1 if q else 128))", expression_228),
    ("(not (-y not in [a, (1e300 % 2.5E+3), x]))", expression_229),
    (
        "(min(ceil_div((b % a % 9223372036854775807), min(0, 1))) / (min((2.5E+3 + 1e-5)) * (0.0 / ceil_div(target.sm, 1))))",
        expression_230,
    ),
    ("min((0 / 2.5E+3))", expression_231),
    ("sqrt(y)", expression_232),
    ("(((layout != NHD) or not p and FALSE) or not FALSE and FALSE)", expression_233),
    ("(layout if (not q) else 'BSHD')", expression_234),
    ("(layout if (not (not p)) else 'BSHD')", expression_235),
    (
        "((ceil_div(min(9223372036854775807), (b + 2)) if given(mask) else ((9223372036854775807 + 128) * (a * -3))) / (target.sm * 128 + 0))",
        expression_236,
    ),
    ("-ceil_div(1, 9223372036854775807)", expression_237),
    (
        "((-x - ceil_div(-9223372036854775808, 0)) if (min(-9223372036854775808, 7) < (b - a - 2) != (b + target.sm)) else --0.5)",
        expression_238,
    ),
    (
        "(((-2 % (target.sm // 0)) * (ceil_div(a, -9223372036854775808) // a)) == (((x // 2) % ceil_div(0, 0)) if ((target.sm if q else a) in [7, (2.5E+3 if q else 1e-5), 2.5E+3]) else ((0.5 // 2) % (b * target.sm))))",
        expression_239,
    ),
    ("(b % (b if true else -9223372036854775808))", expression_240),
    (
        "(min(abs(1), (a * a)) if ((0.5 in [1e300, -9223372036854775808, -3]) if given(mask) else (q or not true or given(mask))) else ((-9223372036854775808 - 7) % min(target.sm)))",
        expression_241,
    ),
    ("1e-5", expression_242),
    ("-(1e-5 * 7)", expression_243),
    (
        "(((1 in [9223372036854775807, -3, 0.5]) if (1e-5 <= 2.5E+3 < 1) else (128 < 1)) and ((a + 0) != (x - 2)))",
        expression_244,
    ),
    (
        "(abs(((x % 0.0) // (x * 9223372036854775807))) / ((0 / (y if q else 1e300)) + (0.0 if (given(mask) if given(mask) else true) else (0.5 - 2.5E+3))))",
        expression_245,
    ),
    (
        "(true or (128 in [9223372036854775807, -9223372036854775808, y]))",
        expression_246,
    ),
    ("(layout if p else BHSD)", expression_247),
    ("(-max((1 / -3), 2.5E+3, x) % --max(7, 9223372036854775807, b))", expression_248),
    ("((2 // target.sm * 128) > (1 * 7))", expression_249),
    ("(layout if FALSE else BSHD)", expression_250),
    (
        "(layout if (((0 * target.sm) // (9223372036854775807 % target.sm)) >= ((0.0 // 0.0) if (true or not given(mask) and p) else -1e-5)) else NHD)",
        expression_251,
    ),
    (
        "min((-9223372036854775808 * 128 // 9223372036854775807), (1 * a))",
        expression_252,
    ),
    ("((layout if FALSE else 'BSHD') == layout)", expression_253),
    (
        "((not given(mask)) == (((2.5E+3 == 1e-5) and (layout != BSHD)) or not p and given(mask)))",
        expression_254,
    ),
    ("max((1e300 / 1e-5), x, sqrt(9223372036854775807))", expression_255),
    (
        "((ceil_div(target.sm, -3) * (2 % -9223372036854775808)) if (FALSE if (1 == -9223372036854775808) else (0 > -3)) else --target.sm)",
        expression_256,
    ),
    (
        "-(max((0.0 % a), x, (7 / 9223372036854775807)) if (not given(mask)) else sqrt((1 // 2 % a)))",
        expression_257,
    ),
    (
        "(min(7, target.sm) == ceil_div(7, 9223372036854775807) != (0.5 - 9223372036854775807))",
        expression_258,
    ),
    ("(layout if (not (p or not q and q)) else BSHD)", expression_259),
    (
        "ceil_div((ceil_div((7 if FALSE else 9223372036854775807), -1) // (ceil_div(b, 9223372036854775807) if (layout not in [\"NHD\", BHSD]) else ceil_div(128, 2))), max((128 * -128), a, ceil_div((b % 2), ceil_div(128, target.sm))))",
        expression_260,
    ),
    ("((y if FALSE else x) % (1e300 * -3))", expression_261),
    ("(layout if (layout == layout) else NHD)", expression_262),
    ("(((min(target.sm) + (b % a)) - -(a - a // target.sm)) + 128)", expression_263),
    ("(layout if (not true) else \"NHD\")", expression_264),
    ("(layout if (layout != NHD) else \"NHD\")", expression_265),
    (
        "(9223372036854775807 if ((-9223372036854775808 - a - 9223372036854775807) not in [1e300, min((128 + a % 9223372036854775807), (2 - 9223372036854775807 % b)), 2]) else -(ceil_div(a, 0) if (FALSE or q) else (9223372036854775807 + 2)))",
        expression_266,
    ),
    ("((1 % 2) <= (-3 * 1 % 128) != abs(1e-5))", expression_267),
    (
        "(--0.0 < ceil_div((-9223372036854775808 if given(mask) else target.sm), ceil_div(-9223372036854775808, 7)) >= -(128 - target.sm))",
        expression_268,
    ),
    ("(layout if (layout != 'BSHD') else \"NHD\")", expression_269),
    ("((9223372036854775807 - -3) % (-3 // -3))", expression_270),
    (
        "(layout if ((q and given(mask)) == (layout not in [BHSD, BHSD])) else BSHD)",
        expression_271,
    ),
    (
        "(layout if (((layout if FALSE else BHSD) not in ['BSHD', \"NHD\"]) and ((y % 128) == (128 - -9223372036854775808))) else BSHD)",
        expression_272,
    ),
    ("-(0.5 + target.sm)", expression_273),
    (
        "(128 not in [7, -ceil_div(9223372036854775807, 9223372036854775807), 2])",
        expression_274,
    ),
    (
        "((---3 % -(b % 0)) > (target.sm * (a if (target.sm not in [1e300, -9223372036854775808, 9223372036854775807]) else -a)))",
        expression_275,
    ),
    ("((p or p) or not p or FALSE)", expression_276),
    (
        "(((9223372036854775807 * a) == (-3 + 128) < (a / a)) or (not (y == -3 >= x)))",
        expression_277,
    ),
    (
        "max(((target.sm // -2) // ((9223372036854775807 + a % 7) % (9223372036854775807 % -3))), b, ((1 + -a) - ((-9223372036854775808 * a) % ceil_div(target.sm, 1))))",
        expression_278,
    ),
    ("(--9223372036854775808 == b >= (0.0 - 9223372036854775807))", expression_279),
    (
        "(layout if ((x < -3 >= -9223372036854775808) or not FALSE and FALSE) else BHSD)",
        expression_280,
    ),
    (
        "(min((a % 1)) / (((y // -3) if (layout not in ['BSHD', BHSD]) else (1e300 % -9223372036854775808)) % ((128 // -9223372036854775808) if (q or given(mask)) else (-3 // a))))",
        expression_281,
    ),
    ("(layout if (q if true else q) else 'BSHD')", expression_282),
    (
        "((1 * 0 * 2) / ((-9223372036854775808 if true else -9223372036854775808) * -9223372036854775807))",
        expression_283,
    ),
    (
        "(-min(0.5, (1e300 / 1)) != (0.5 - ((9223372036854775807 / -9223372036854775808) / 1e-5)))",
        expression_284,
    ),
    ("(0.0 < (128 * 2))", expression_285),
    ("(layout if (a != abs(9223372036854775807)) else BHSD)", expression_286),
    (
        "sqrt((((0 // b + -3) // (-9223372036854775808 if p else -9223372036854775808)) * abs((-9223372036854775808 // -3))))",
        expression_287,
    ),
    ("(ceil_div(0, -3) in [0.0, -0, 7])", expression_288),
    ("(target.sm + 1 % 9223372036854775807)", expression_289),
    (
        "((layout == layout) == (not ((1 - 1) >= (128 if given(mask) else 1))))",
        expression_290,
    ),
    ("((not given(mask)) or (true and p))", expression_291),
    ("((-target.sm // 0) * ((-9223372036854775808 // -3) - (b % -3)))", expression_292),
    ("b", expression_293),
    ("(layout if (true or true) else BSHD)", expression_294),
    (
        "(layout if ((1 + target.sm) in [1e300, (0.5 if p else 2.5E+3), x]) else 'BSHD')",
        expression_295,
    ),
    (
        "(FALSE and (min(1e300) < min(7) < ((a * 9223372036854775807 + 2) if (true if FALSE else FALSE) else (9223372036854775807 - b))))",
        expression_296,
    ),
    ("((q and not p or q) and (7 > 128))", expression_297),
    (
        "(abs(-9223372036854775808) if (ceil_div(2, target.sm) >= -7) else min((2 % target.sm), (2 - 128)))",
        expression_298,
    ),
    (
        "(not (((layout if FALSE else NHD) not in [BHSD, \"NHD\"]) if ((0 >= a) or (true and true)) else ((layout != 'BSHD') or (1e-5 == 0))))",
        expression_299,
    ),
];
fn expression_0(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::sqrt_float(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::modulo_int(0i64, 7i64)?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_1(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
            !(v.given_mask || false)
                == ((if v.given_mask { v.layout } else { 2u32 }) == v.layout),
        )
        .map(Value::Bool)
}
fn expression_2(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::divide_float(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::add_int(
                ::lz_schema::expr::arith::subtract_int(
                    ::lz_schema::expr::arith::modulo_int(9223372036854775807i64, v.a)?,
                    1i64,
                )?,
                ::lz_schema::expr::arith::ceil_divide_int(
                    ::lz_schema::expr::arith::ceil_divide_int(128i64, v.a)?,
                    ::lz_schema::expr::arith::negate_int(v.b)?,
                )?,
            )?,
        ),
        0.5f64,
    ))()
        .map(Value::Float)
}
fn expression_3(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(v.layout != 1u32 && v.layout != 0u32 || !v.p || true)
        .map(Value::Bool)
}
fn expression_4(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::divide_float(
            ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::modulo_int(-3i64, i64::MIN)?,
            ),
            ::lz_schema::expr::arith::widen(if v.q { -3i64 } else { v.b }),
        )?
            == ::lz_schema::expr::arith::divide_float(
                ::lz_schema::expr::arith::negate_float(0.5f64),
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::ceil_divide_int(v.a, 1i64)?,
                ),
            )?
            && ::lz_schema::expr::arith::divide_float(
                ::lz_schema::expr::arith::negate_float(0.5f64),
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::ceil_divide_int(v.a, 1i64)?,
                ),
            )?
                >= ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::modulo_int(
                        if v.given_mask { 2i64 } else { v.a },
                        ::lz_schema::expr::arith::modulo_int(2i64, v.b)?,
                    )?,
                ),
    ))()
        .map(Value::Bool)
}
fn expression_5(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<bool, ::lz_schema::expr::arith::EvalError>(false)
        .map(Value::Bool)
}
fn expression_6(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<bool, ::lz_schema::expr::arith::EvalError>(v.q)
        .map(Value::Bool)
}
fn expression_7(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::widen(if v.given_mask { v.target_sm } else { v.b })
            < ::lz_schema::expr::arith::modulo_float(v.x, 2500.0f64)?
            && (true == true || 1e300f64 <= ::lz_schema::expr::arith::widen(v.target_sm)),
    ))()
        .map(Value::Bool)
}
fn expression_8(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::modulo_int(
            if 1e-5f64 >= -9.223372036854776e18f64 {
                ::lz_schema::expr::arith::floor_divide_int(v.a, -3i64)?
            } else {
                ::lz_schema::expr::arith::modulo_int(9223372036854775807i64, v.a)?
            },
            -3i64,
        )?
            == (if ::lz_schema::expr::arith::negate_float(v.y)
                > ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::subtract_int(
                        ::lz_schema::expr::arith::floor_divide_int(0i64, 7i64)?,
                        -3i64,
                    )?,
                )
            {
                7i64
            } else {
                ::lz_schema::expr::arith::modulo_int(
                    ::lz_schema::expr::arith::floor_divide_int(128i64, 128i64)?,
                    9223372036854775807i64,
                )?
            }),
    ))()
        .map(Value::Bool)
}
fn expression_9(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >({
        let __looked_for = ::lz_schema::expr::arith::subtract_int(
            ::lz_schema::expr::arith::modulo_int(v.a, 2i64)?,
            v.target_sm,
        )?;
        __looked_for == 0i64
            || __looked_for
                == ::lz_schema::expr::arith::floor_divide_int(
                    ::lz_schema::expr::arith::multiply_int(
                        v.target_sm,
                        9223372036854775807i64,
                    )?,
                    1i64,
                )? || __looked_for == 128i64
    }))()
        .map(Value::Bool)
}
fn expression_10(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::ceil_divide_int(
                ::lz_schema::expr::arith::modulo_int(-3i64, 128i64)?,
                if false { v.b } else { -3i64 },
            )?,
        )
            < ::lz_schema::expr::arith::floor_divide_float(
                ::lz_schema::expr::arith::min_float(2500.0f64, 0.5f64),
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::floor_divide_int(128i64, 0i64)?,
                ),
            )?
            && ::lz_schema::expr::arith::floor_divide_float(
                ::lz_schema::expr::arith::min_float(2500.0f64, 0.5f64),
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::floor_divide_int(128i64, 0i64)?,
                ),
            )?
                >= ::lz_schema::expr::arith::modulo_float(
                    ::lz_schema::expr::arith::floor_divide_float(0.5f64, -3.0f64)?,
                    ::lz_schema::expr::arith::widen(
                        ::lz_schema::expr::arith::add_int(i64::MIN, 0i64)?,
                    ),
                )?,
    ))()
        .map(Value::Bool)
}
fn expression_11(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(v.layout != 2u32)
        .map(Value::Bool)
}
fn expression_12(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::multiply_int(
        ::lz_schema::expr::arith::modulo_int(
            ::lz_schema::expr::arith::multiply_int(v.b, v.a)?,
            i64::MIN,
        )?,
        ::lz_schema::expr::arith::modulo_int(v.target_sm, 2i64)?,
    ))()
        .map(Value::Int)
}
fn expression_13(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >({
        let __looked_for = ::lz_schema::expr::arith::abs_float(v.x);
        __looked_for != 1.0f64
            && __looked_for
                != ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::floor_divide_int(
                        -2i64,
                        ::lz_schema::expr::arith::floor_divide_int(1i64, i64::MIN)?,
                    )?,
                ) && __looked_for != 0.0f64
    }))()
        .map(Value::Bool)
}
fn expression_14(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<i64, ::lz_schema::expr::arith::EvalError>(7i64)
        .map(Value::Int)
}
fn expression_15(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if v.given_mask == v.q { v.layout } else { 2u32 })
        .map(Value::Enum)
}
fn expression_16(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::subtract_int(
            ::lz_schema::expr::arith::ceil_divide_int(7i64, v.target_sm)?,
            ::lz_schema::expr::arith::ceil_divide_int(1i64, -3i64)?,
        )?
            == ::lz_schema::expr::arith::modulo_int(
                ::lz_schema::expr::arith::multiply_int(v.a, 0i64)?,
                1i64,
            )?
            && ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::modulo_int(
                    ::lz_schema::expr::arith::multiply_int(v.a, 0i64)?,
                    1i64,
                )?,
            )
                != ::lz_schema::expr::arith::abs_float(
                    ::lz_schema::expr::arith::modulo_float(1e-5f64, 2.0f64)?,
                ),
    ))()
        .map(Value::Bool)
}
fn expression_17(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >({
        let __looked_for = if ::lz_schema::expr::arith::modulo_int(-3i64, v.b)?
            == ::lz_schema::expr::arith::ceil_divide_int(9223372036854775807i64, 2i64)?
        {
            ::lz_schema::expr::arith::abs_float(if true { v.x } else { 2500.0f64 })
        } else {
            if ({
                let __looked_for = ::lz_schema::expr::arith::widen(v.a);
                __looked_for == v.x || __looked_for == 2.0f64
                    || __looked_for == ::lz_schema::expr::arith::widen(v.b)
            }) {
                ::lz_schema::expr::arith::floor_divide_float(0.0f64, 2.0f64)?
            } else {
                0.0f64
            }
        };
        __looked_for == 2.0f64
            || __looked_for
                == ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::max_int(
                        ::lz_schema::expr::arith::max_int(0i64, v.target_sm),
                        ::lz_schema::expr::arith::ceil_divide_int(
                            ::lz_schema::expr::arith::multiply_int(v.target_sm, -3i64)?,
                            ::lz_schema::expr::arith::min_int(7i64, i64::MIN),
                        )?,
                    ),
                ) || __looked_for == 1.0f64
    }))()
        .map(Value::Bool)
}
fn expression_18(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        i64,
        ::lz_schema::expr::arith::EvalError,
    >(
        if (if v.given_mask { v.p } else { true }) {
            ::lz_schema::expr::arith::abs_int(v.target_sm)?
        } else {
            ::lz_schema::expr::arith::max_int(
                ::lz_schema::expr::arith::max_int(2i64, i64::MIN),
                i64::MIN,
            )
        },
    ))()
        .map(Value::Int)
}
fn expression_19(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >({
            let __looked_for = if true && v.q { v.layout } else { 0u32 };
            __looked_for != 0u32 && __looked_for != 2u32
        })
        .map(Value::Bool)
}
fn expression_20(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::add_int(
            ::lz_schema::expr::arith::modulo_int(7i64, 2i64)?,
            7i64,
        )?
            > ::lz_schema::expr::arith::multiply_int(
                if v.x == -9.223372036854776e18f64 {
                    v.target_sm
                } else {
                    ::lz_schema::expr::arith::subtract_int(2i64, 1i64)?
                },
                if v.layout != 0u32 { if true { v.a } else { 0i64 } } else { -1i64 },
            )?,
    ))()
        .map(Value::Bool)
}
fn expression_21(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(false && !v.given_mask || v.given_mask)
        .map(Value::Bool)
}
fn expression_22(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::add_float(
        ::lz_schema::expr::arith::multiply_float(
            ::lz_schema::expr::arith::subtract_float(
                2500.0f64,
                ::lz_schema::expr::arith::widen(v.b),
            )?,
            ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::ceil_divide_int(2i64, v.target_sm)?,
            ),
        )?,
        ::lz_schema::expr::arith::negate_float(
            ::lz_schema::expr::arith::sqrt_float(-3.0f64)?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_23(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        !(if 128.0f64 < 0.0f64 { v.x != 7.0f64 } else { v.layout != 2u32 })
            == ({
                let __looked_for = if ::lz_schema::expr::arith::widen(v.b) > 0.0f64 {
                    ::lz_schema::expr::arith::negate_float(0.0f64)
                } else {
                    1e-5f64
                };
                __looked_for == v.y
                    || __looked_for
                        == ::lz_schema::expr::arith::widen(
                            ::lz_schema::expr::arith::negate_int(
                                ::lz_schema::expr::arith::modulo_int(-3i64, i64::MIN)?,
                            )?,
                        ) || __looked_for == ::lz_schema::expr::arith::widen(v.b)
            }),
    ))()
        .map(Value::Bool)
}
fn expression_24(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::max_float(
            ::lz_schema::expr::arith::max_float(
                ::lz_schema::expr::arith::min_float(1e300f64, v.y),
                v.y,
            ),
            ::lz_schema::expr::arith::add_float(0.0f64, v.x)?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_25(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >((0i64 == 128i64) == (v.q || v.q) && !v.p && v.p)
        .map(Value::Bool)
}
fn expression_26(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(
            if (if (if true { v.given_mask } else { true }) && (false && !true || v.p) {
                v.given_mask
            } else {
                (if v.p { v.q } else { v.q }) && !true || v.p
            }) {
                v.layout
            } else {
                1u32
            },
        )
        .map(Value::Enum)
}
fn expression_27(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >((v.q || v.given_mask) && !false && v.given_mask)
        .map(Value::Bool)
}
fn expression_28(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        if v.layout != 2u32 {
            ::lz_schema::expr::arith::negate_int(v.b)?
                < ::lz_schema::expr::arith::ceil_divide_int(128i64, i64::MIN)?
                && ::lz_schema::expr::arith::ceil_divide_int(128i64, i64::MIN)?
                    != (if v.given_mask { v.a } else { 128i64 })
        } else {
            v.layout == v.layout
        },
    ))()
        .map(Value::Bool)
}
fn expression_29(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::subtract_int(
        ::lz_schema::expr::arith::modulo_int(
            ::lz_schema::expr::arith::negate_int(
                ::lz_schema::expr::arith::add_int(i64::MIN, v.target_sm)?,
            )?,
            ::lz_schema::expr::arith::add_int(v.target_sm, 1i64)?,
        )?,
        ::lz_schema::expr::arith::multiply_int(
            ::lz_schema::expr::arith::multiply_int(
                ::lz_schema::expr::arith::min_int(v.b, v.a),
                ::lz_schema::expr::arith::modulo_int(v.b, v.a)?,
            )?,
            ::lz_schema::expr::arith::floor_divide_int(
                ::lz_schema::expr::arith::multiply_int(-3i64, 9223372036854775807i64)?,
                -3i64,
            )?,
        )?,
    ))()
        .map(Value::Int)
}
fn expression_30(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::negate_float(
            ::lz_schema::expr::arith::divide_float(1e300f64, 2.0f64)?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_31(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if v.layout != 0u32 { v.layout } else { 0u32 })
        .map(Value::Enum)
}
fn expression_32(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::floor_divide_int(
        ::lz_schema::expr::arith::max_int(
            ::lz_schema::expr::arith::max_int(
                ::lz_schema::expr::arith::ceil_divide_int(
                    if false { 9223372036854775807i64 } else { i64::MIN },
                    128i64,
                )?,
                128i64,
            ),
            ::lz_schema::expr::arith::modulo_int(
                ::lz_schema::expr::arith::floor_divide_int(
                    2i64,
                    9223372036854775807i64,
                )?,
                -3i64,
            )?,
        ),
        i64::MIN,
    ))()
        .map(Value::Int)
}
fn expression_33(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<bool, ::lz_schema::expr::arith::EvalError>(!false)
        .map(Value::Bool)
}
fn expression_34(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >({
        let __looked_for = ::lz_schema::expr::arith::multiply_float(
            ::lz_schema::expr::arith::divide_float(
                2500.0f64,
                ::lz_schema::expr::arith::widen(v.b),
            )?,
            ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::multiply_int(2i64, 0i64)?,
            ),
        )?;
        __looked_for != -9.223372036854776e18f64
            && __looked_for
                != ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::negate_int(
                        ::lz_schema::expr::arith::ceil_divide_int(7i64, -3i64)?,
                    )?,
                ) && __looked_for != ::lz_schema::expr::arith::widen(v.a)
    }))()
        .map(Value::Bool)
}
fn expression_35(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        if ({
            let __looked_for = if ({
                let __looked_for = ::lz_schema::expr::arith::widen(v.target_sm);
                __looked_for != 0.5f64
                    && __looked_for != ::lz_schema::expr::arith::widen(v.target_sm)
                    && __looked_for != 2500.0f64
            }) {
                v.layout
            } else {
                0u32
            };
            __looked_for != 0u32 && __looked_for != 0u32
        }) {
            !((v.given_mask || true) && !v.given_mask)
        } else {
            if v.layout == (if v.given_mask { v.layout } else { 1u32 }) {
                {
                    let __looked_for = ::lz_schema::expr::arith::subtract_int(
                        v.b,
                        0i64,
                    )?;
                    __looked_for != 1i64
                        && __looked_for
                            != ::lz_schema::expr::arith::add_int(v.b, i64::MIN)?
                        && __looked_for != i64::MIN
                }
            } else {
                {
                    let __looked_for = ::lz_schema::expr::arith::multiply_int(
                        i64::MIN,
                        i64::MIN,
                    )?;
                    __looked_for != v.b
                        && __looked_for
                            != ::lz_schema::expr::arith::subtract_int(
                                1i64,
                                ::lz_schema::expr::arith::multiply_int(2i64, 2i64)?,
                            )? && __looked_for != 0i64
                }
            }
        },
    ))()
        .map(Value::Bool)
}
fn expression_36(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::subtract_float(
            0.5f64,
            ::lz_schema::expr::arith::widen(v.target_sm),
        )? == 2.0f64 && 2.0f64 < 1e-5f64,
    ))()
        .map(Value::Bool)
}
fn expression_37(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        1e-5f64
            != ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::modulo_int(
                    ::lz_schema::expr::arith::ceil_divide_int(7i64, 7i64)?,
                    ::lz_schema::expr::arith::ceil_divide_int(v.a, -3i64)?,
                )?,
            ),
    ))()
        .map(Value::Bool)
}
fn expression_38(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::ceil_divide_int(
            ::lz_schema::expr::arith::floor_divide_int(
                ::lz_schema::expr::arith::subtract_int(
                    9223372036854775807i64,
                    ::lz_schema::expr::arith::floor_divide_int(128i64, v.a)?,
                )?,
                ::lz_schema::expr::arith::ceil_divide_int(-3i64, 2i64)?,
            )?,
            if false == v.p {
                i64::MIN
            } else {
                ::lz_schema::expr::arith::ceil_divide_int(0i64, 9223372036854775807i64)?
            },
        )?
            < ::lz_schema::expr::arith::max_int(
                ::lz_schema::expr::arith::max_int(
                    ::lz_schema::expr::arith::ceil_divide_int(
                        ::lz_schema::expr::arith::max_int(
                            ::lz_schema::expr::arith::max_int(
                                v.b,
                                9223372036854775807i64,
                            ),
                            v.a,
                        ),
                        1i64,
                    )?,
                    v.b,
                ),
                ::lz_schema::expr::arith::multiply_int(
                    ::lz_schema::expr::arith::floor_divide_int(1i64, 1i64)?,
                    v.a,
                )?,
            )
            && ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::max_int(
                    ::lz_schema::expr::arith::max_int(
                        ::lz_schema::expr::arith::ceil_divide_int(
                            ::lz_schema::expr::arith::max_int(
                                ::lz_schema::expr::arith::max_int(
                                    v.b,
                                    9223372036854775807i64,
                                ),
                                v.a,
                            ),
                            1i64,
                        )?,
                        v.b,
                    ),
                    ::lz_schema::expr::arith::multiply_int(
                        ::lz_schema::expr::arith::floor_divide_int(1i64, 1i64)?,
                        v.a,
                    )?,
                ),
            )
                != ::lz_schema::expr::arith::max_float(
                    ::lz_schema::expr::arith::max_float(
                        ::lz_schema::expr::arith::floor_divide_float(v.x, 2.0f64)?,
                        v.x,
                    ),
                    ::lz_schema::expr::arith::negate_float(
                        ::lz_schema::expr::arith::negate_float(v.y),
                    ),
                ),
    ))()
        .map(Value::Bool)
}
fn expression_39(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        (if v.given_mask { v.x } else { 1e300f64 })
            < ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::add_int(1i64, v.b)?,
            ),
    ))()
        .map(Value::Bool)
}
fn expression_40(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::divide_float(
        ::lz_schema::expr::arith::widen(v.b),
        ::lz_schema::expr::arith::sqrt_float(if false { 1e-5f64 } else { v.x })?,
    ))()
        .map(Value::Float)
}
fn expression_41(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::multiply_int(
        ::lz_schema::expr::arith::ceil_divide_int(
            ::lz_schema::expr::arith::subtract_int(
                ::lz_schema::expr::arith::add_int(2i64, v.target_sm)?,
                ::lz_schema::expr::arith::modulo_int(v.target_sm, 7i64)?,
            )?,
            7i64,
        )?,
        if !v.q || (if v.given_mask { v.q } else { false }) {
            ::lz_schema::expr::arith::subtract_int(
                ::lz_schema::expr::arith::modulo_int(
                    9223372036854775807i64,
                    9223372036854775807i64,
                )?,
                v.target_sm,
            )?
        } else {
            ::lz_schema::expr::arith::multiply_int(
                ::lz_schema::expr::arith::floor_divide_int(
                    ::lz_schema::expr::arith::modulo_int(1i64, i64::MIN)?,
                    0i64,
                )?,
                7i64,
            )?
        },
    ))()
        .map(Value::Int)
}
fn expression_42(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<bool, ::lz_schema::expr::arith::EvalError>(v.p)
        .map(Value::Bool)
}
fn expression_43(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::negate_float(
            ::lz_schema::expr::arith::divide_float(
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::floor_divide_int(-3i64, v.target_sm)?,
                ),
                ::lz_schema::expr::arith::divide_float(128.0f64, 2.0f64)?,
            )?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_44(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if v.given_mask { v.layout } else { 0u32 })
        .map(Value::Enum)
}
fn expression_45(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<u32, ::lz_schema::expr::arith::EvalError>(v.layout)
        .map(Value::Enum)
}
fn expression_46(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >({
        let __looked_for = ::lz_schema::expr::arith::subtract_int(
            v.a,
            ::lz_schema::expr::arith::multiply_int(1i64, 0i64)?,
        )?;
        __looked_for != 1i64
            && __looked_for
                != (if v.p || !v.q && v.p {
                    ::lz_schema::expr::arith::max_int(
                        ::lz_schema::expr::arith::max_int(128i64, 128i64),
                        2i64,
                    )
                } else {
                    9223372036854775807i64
                }) && __looked_for != 1i64
    }))()
        .map(Value::Bool)
}
fn expression_47(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        (if 2i64 < 9223372036854775807i64 && 9.223372036854776e18f64 < 1e-5f64
            || true && true
        {
            !(false == v.p)
        } else {
            v.q
        })
            == (::lz_schema::expr::arith::subtract_float(
                ::lz_schema::expr::arith::add_float(0.5f64, v.y)?,
                ::lz_schema::expr::arith::abs_float(0.5f64),
            )?
                <= ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::subtract_int(
                        ::lz_schema::expr::arith::add_int(v.a, -3i64)?,
                        ::lz_schema::expr::arith::min_int(
                            v.target_sm,
                            9223372036854775807i64,
                        ),
                    )?,
                )),
    ))()
        .map(Value::Bool)
}
fn expression_48(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::ceil_divide_int(v.target_sm, i64::MIN)?
            != ::lz_schema::expr::arith::max_int(
                ::lz_schema::expr::arith::max_int(i64::MIN, v.a),
                128i64,
            ),
    ))()
        .map(Value::Bool)
}
fn expression_49(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::ceil_divide_int(
                v.a,
                ::lz_schema::expr::arith::ceil_divide_int(0i64, 2i64)?,
            )?,
        )
            != ::lz_schema::expr::arith::divide_float(
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::subtract_int(2i64, v.target_sm)?,
                ),
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::multiply_int(v.target_sm, 128i64)?,
                ),
            )?,
    ))()
        .map(Value::Bool)
}
fn expression_50(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(
        if (if 0.5f64 == 128.0f64 && 128i64 >= v.target_sm {
            0.0f64 != 0.0f64 && 0.0f64 != v.x && 0.0f64 != 9.223372036854776e18f64
        } else {
            false || v.q
        }) && 9223372036854775807i64 != ::lz_schema::expr::arith::abs_int(v.a)?
        {
            v.layout
        } else {
            1u32
        },
    ))()
        .map(Value::Enum)
}
fn expression_51(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >((true || !true && false) == (v.layout != 2u32))
        .map(Value::Bool)
}
fn expression_52(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::divide_float(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::ceil_divide_int(
                v.target_sm,
                ::lz_schema::expr::arith::floor_divide_int(-3i64, v.b)?,
            )?,
        ),
        ::lz_schema::expr::arith::widen(i64::MIN),
    ))()
        .map(Value::Float)
}
fn expression_53(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::widen(
            if (0.5f64 < 2.0f64 && 2i64 < 0i64) == (false || false) {
                0i64
            } else {
                ::lz_schema::expr::arith::max_int(
                    ::lz_schema::expr::arith::max_int(
                        ::lz_schema::expr::arith::subtract_int(
                            ::lz_schema::expr::arith::subtract_int(7i64, 7i64)?,
                            2i64,
                        )?,
                        0i64,
                    ),
                    ::lz_schema::expr::arith::modulo_int(7i64, 9223372036854775807i64)?,
                )
            },
        )
            <= ::lz_schema::expr::arith::add_float(
                ::lz_schema::expr::arith::sqrt_float(1.0f64)?,
                ::lz_schema::expr::arith::modulo_float(
                    ::lz_schema::expr::arith::subtract_float(
                        0.0f64,
                        -9.223372036854776e18f64,
                    )?,
                    ::lz_schema::expr::arith::floor_divide_float(2500.0f64, v.x)?,
                )?,
            )?,
    ))()
        .map(Value::Bool)
}
fn expression_54(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<f64, ::lz_schema::expr::arith::EvalError>(1e300f64)
        .map(Value::Float)
}
fn expression_55(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<i64, ::lz_schema::expr::arith::EvalError>(-3i64)
        .map(Value::Int)
}
fn expression_56(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        (if ::lz_schema::expr::arith::ceil_divide_int(0i64, 7i64)?
            <= -9223372036854775807i64 && -9223372036854775807i64 != -128i64
        {
            !false || true == false
        } else {
            !v.q && (if v.p { v.q } else { v.q })
        })
            && ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::modulo_int(128i64, 2i64)?,
            ) == ::lz_schema::expr::arith::subtract_float(0.0f64, 0.0f64)?
            && ::lz_schema::expr::arith::subtract_float(0.0f64, 0.0f64)?
                >= ::lz_schema::expr::arith::divide_float(2.0f64, 0.0f64)? && v.p,
    ))()
        .map(Value::Bool)
}
fn expression_57(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if (if false { v.given_mask } else { v.given_mask }) { v.layout } else { 2u32 })
        .map(Value::Enum)
}
fn expression_58(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        0.5f64
            < ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::ceil_divide_int(
                    ::lz_schema::expr::arith::modulo_int(
                        ::lz_schema::expr::arith::modulo_int(v.a, v.b)?,
                        7i64,
                    )?,
                    0i64,
                )?,
            )
            && ::lz_schema::expr::arith::ceil_divide_int(
                ::lz_schema::expr::arith::modulo_int(
                    ::lz_schema::expr::arith::modulo_int(v.a, v.b)?,
                    7i64,
                )?,
                0i64,
            )? != 9223372036854775807i64,
    ))()
        .map(Value::Bool)
}
fn expression_59(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        (if 128.0f64 != ::lz_schema::expr::arith::widen(v.target_sm)
            && 128.0f64 != 2500.0f64 && 128.0f64 != v.y
        {
            v.a != v.b && v.a != i64::MIN && v.a != 128i64
        } else {
            v.x == -9.223372036854776e18f64
        })
            == (::lz_schema::expr::arith::min_float(v.x, v.y)
                <= (if v.q { v.y } else { v.x }))
            || (if v.mode == 1u32 {
                !v.given_mask == (true || !true || true)
            } else {
                ::lz_schema::expr::arith::ceil_divide_int(v.target_sm, 128i64)?
                    > ::lz_schema::expr::arith::negate_int(v.b)?
            }),
    ))()
        .map(Value::Bool)
}
fn expression_60(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >({
        let __looked_for = ::lz_schema::expr::arith::widen(
            if v.given_mask { v.a } else { v.a },
        );
        __looked_for == ::lz_schema::expr::arith::widen(v.target_sm)
            || __looked_for
                == ::lz_schema::expr::arith::divide_float(
                    1e-5f64,
                    ::lz_schema::expr::arith::widen(v.a),
                )? || __looked_for == ::lz_schema::expr::arith::widen(v.target_sm)
    }))()
        .map(Value::Bool)
}
fn expression_61(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        if !(if v.given_mask { false } else { v.given_mask }) {
            ::lz_schema::expr::arith::divide_float(
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::floor_divide_int(
                        ::lz_schema::expr::arith::floor_divide_int(v.a, 2i64)?,
                        v.a,
                    )?,
                ),
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::add_int(
                        ::lz_schema::expr::arith::subtract_int(0i64, 0i64)?,
                        v.b,
                    )?,
                ),
            )?
        } else {
            ::lz_schema::expr::arith::divide_float(
                ::lz_schema::expr::arith::widen(if true { v.a } else { i64::MIN }),
                128.0f64,
            )?
        },
    ))()
        .map(Value::Float)
}
fn expression_62(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::floor_divide_int(
        if (if v.given_mask || v.given_mask {
            false || false
        } else {
            v.target_sm < 9223372036854775807i64 && 9223372036854775807i64 < 7i64
        }) {
            -3i64
        } else {
            ::lz_schema::expr::arith::ceil_divide_int(
                i64::MIN,
                ::lz_schema::expr::arith::floor_divide_int(
                    ::lz_schema::expr::arith::modulo_int(
                        v.target_sm,
                        9223372036854775807i64,
                    )?,
                    128i64,
                )?,
            )?
        },
        ::lz_schema::expr::arith::subtract_int(
            ::lz_schema::expr::arith::add_int(
                ::lz_schema::expr::arith::add_int(1i64, v.b)?,
                128i64,
            )?,
            ::lz_schema::expr::arith::multiply_int(
                ::lz_schema::expr::arith::add_int(v.b, v.b)?,
                ::lz_schema::expr::arith::abs_int(1i64)?,
            )?,
        )?,
    ))()
        .map(Value::Int)
}
fn expression_63(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
            if v.given_mask && false {
                v.given_mask && !v.q && v.q
            } else {
                0.0f64 <= -3.0f64 && -3i64 < i64::MIN
            },
        )
        .map(Value::Bool)
}
fn expression_64(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::divide_float(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::add_int(
                ::lz_schema::expr::arith::negate_int(v.a)?,
                ::lz_schema::expr::arith::add_int(
                    ::lz_schema::expr::arith::modulo_int(v.target_sm, v.b)?,
                    0i64,
                )?,
            )?,
        ),
        ::lz_schema::expr::arith::sqrt_float(::lz_schema::expr::arith::widen(-3i64))?,
    ))()
        .map(Value::Float)
}
fn expression_65(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::subtract_int(
            ::lz_schema::expr::arith::negate_int(
                ::lz_schema::expr::arith::max_int(
                    ::lz_schema::expr::arith::max_int(2i64, 7i64),
                    1i64,
                ),
            )?,
            i64::MIN,
        )? <= v.target_sm,
    ))()
        .map(Value::Bool)
}
fn expression_66(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::divide_float(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::modulo_int(v.a, 7i64)?,
        ),
        0.0f64,
    ))()
        .map(Value::Float)
}
fn expression_67(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(v.mode == 1u32)
        .map(Value::Bool)
}
fn expression_68(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
            !(if v.b == -3i64
                || 2.0f64 != 0.0f64
                    && 2.0f64 != ::lz_schema::expr::arith::widen(v.target_sm)
                    && 2.0f64 != 1e-5f64
            {
                v.p == true || !v.given_mask && v.p
            } else {
                if !false {
                    if v.p { v.p } else { v.p }
                } else {
                    v.layout != 1u32 && v.layout != 1u32
                }
            }),
        )
        .map(Value::Bool)
}
fn expression_69(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if 9223372036854775807i64 != v.target_sm { v.layout } else { 1u32 })
        .map(Value::Enum)
}
fn expression_70(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::multiply_float(
        ::lz_schema::expr::arith::add_float(
            ::lz_schema::expr::arith::divide_float(-9.223372036854776e18f64, 128.0f64)?,
            ::lz_schema::expr::arith::modulo_float(0.0f64, 0.0f64)?,
        )?,
        ::lz_schema::expr::arith::widen(
            if v.x >= 2500.0f64 {
                if v.q { v.a } else { 128i64 }
            } else {
                ::lz_schema::expr::arith::ceil_divide_int(
                    v.target_sm,
                    9223372036854775807i64,
                )?
            },
        ),
    ))()
        .map(Value::Float)
}
fn expression_71(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        !(({
            let __looked_for = ::lz_schema::expr::arith::add_int(
                ::lz_schema::expr::arith::modulo_int(v.a, -3i64)?,
                v.b,
            )?;
            __looked_for != 7i64
                && __looked_for != ::lz_schema::expr::arith::ceil_divide_int(v.a, 2i64)?
                && __looked_for != 128i64
        })
            == (::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::modulo_int(7i64, 1i64)?,
            ) >= v.y)),
    ))()
        .map(Value::Bool)
}
fn expression_72(v: &Variables) -> Result<Value, EvalError> {
    ::lz_schema::expr::arith::add_int(
            -9223372036854775807i64,
            ::lz_schema::expr::arith::max_int(
                ::lz_schema::expr::arith::max_int(9223372036854775807i64, v.a),
                9223372036854775807i64,
            ),
        )
        .map(Value::Int)
}
fn expression_73(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::divide_float(
        -3.0f64,
        ::lz_schema::expr::arith::divide_float(
            ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::modulo_int(1i64, i64::MIN)?,
            ),
            ::lz_schema::expr::arith::floor_divide_float(v.x, -3.0f64)?,
        )?,
    ))()
        .map(Value::Float)
}
fn expression_74(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        (v.mode == 1u32)
            == ({
                let __looked_for = ::lz_schema::expr::arith::subtract_float(
                    if v.given_mask { 2500.0f64 } else { v.y },
                    ::lz_schema::expr::arith::divide_float(1e300f64, 128.0f64)?,
                )?;
                __looked_for != 2500.0f64
                    && __looked_for
                        != (if v.layout == v.layout {
                            ::lz_schema::expr::arith::multiply_float(
                                v.y,
                                ::lz_schema::expr::arith::widen(v.b),
                            )?
                        } else {
                            ::lz_schema::expr::arith::add_float(1e300f64, 0.0f64)?
                        }) && __looked_for != 2500.0f64
            }),
    ))()
        .map(Value::Bool)
}
fn expression_75(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if false && !v.p || true { v.layout } else { 1u32 })
        .map(Value::Enum)
}
fn expression_76(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::subtract_int(
        ::lz_schema::expr::arith::subtract_int(
            -9223372036854775807i64,
            if v.p { v.a } else { v.a },
        )?,
        ::lz_schema::expr::arith::ceil_divide_int(
            ::lz_schema::expr::arith::ceil_divide_int(1i64, 2i64)?,
            ::lz_schema::expr::arith::multiply_int(7i64, 1i64)?,
        )?,
    ))()
        .map(Value::Int)
}
fn expression_77(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        if (if (if v.q { 0.0f64 } else { 1e300f64 })
            != ::lz_schema::expr::arith::modulo_float(1e300f64, 1e-5f64)?
        {
            (v.q || true) && !v.given_mask || true
        } else {
            (v.target_sm > 1i64) == (v.given_mask || v.given_mask)
        }) {
            ::lz_schema::expr::arith::add_float(
                ::lz_schema::expr::arith::abs_float(
                    ::lz_schema::expr::arith::subtract_float(
                        1e-5f64,
                        -9.223372036854776e18f64,
                    )?,
                ),
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::modulo_int(
                        ::lz_schema::expr::arith::add_int(0i64, v.b)?,
                        ::lz_schema::expr::arith::max_int(
                            ::lz_schema::expr::arith::max_int(2i64, 128i64),
                            i64::MIN,
                        ),
                    )?,
                ),
            )?
        } else {
            ::lz_schema::expr::arith::negate_float(0.5f64)
        },
    ))()
        .map(Value::Float)
}
fn expression_78(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::divide_float(
        -7.0f64,
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::floor_divide_int(128i64, v.target_sm)?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_79(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::modulo_int(
        ::lz_schema::expr::arith::ceil_divide_int(
            ::lz_schema::expr::arith::add_int(
                ::lz_schema::expr::arith::multiply_int(0i64, 7i64)?,
                2i64,
            )?,
            ::lz_schema::expr::arith::modulo_int(
                ::lz_schema::expr::arith::multiply_int(0i64, -3i64)?,
                9223372036854775807i64,
            )?,
        )?,
        if -9.223372036854776e18f64 == 9.223372036854776e18f64
            || -9.223372036854776e18f64 == v.y
            || -9.223372036854776e18f64 == ::lz_schema::expr::arith::widen(v.b)
        {
            if true { v.a } else { 0i64 }
        } else {
            if true { v.a } else { v.target_sm }
        },
    ))()
        .map(Value::Int)
}
fn expression_80(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        (if ::lz_schema::expr::arith::subtract_int(i64::MIN, 0i64)?
            < ::lz_schema::expr::arith::ceil_divide_int(-3i64, 1i64)?
        {
            v.layout
        } else {
            1u32
        }) == v.layout,
    ))()
        .map(Value::Bool)
}
fn expression_81(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<bool, ::lz_schema::expr::arith::EvalError>(v.given_mask)
        .map(Value::Bool)
}
fn expression_82(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::add_int(
            ::lz_schema::expr::arith::floor_divide_int(-3i64, 2i64)?,
            if v.given_mask { i64::MIN } else { 7i64 },
        )?
            <= ::lz_schema::expr::arith::add_int(
                1i64,
                ::lz_schema::expr::arith::ceil_divide_int(v.a, 1i64)?,
            )?
            && ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::add_int(
                    1i64,
                    ::lz_schema::expr::arith::ceil_divide_int(v.a, 1i64)?,
                )?,
            ) < 2500.0f64,
    ))()
        .map(Value::Bool)
}
fn expression_83(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::add_int(
        ::lz_schema::expr::arith::floor_divide_int(
            ::lz_schema::expr::arith::add_int(
                ::lz_schema::expr::arith::add_int(v.a, v.b)?,
                1i64,
            )?,
            ::lz_schema::expr::arith::modulo_int(
                ::lz_schema::expr::arith::floor_divide_int(v.b, v.b)?,
                i64::MIN,
            )?,
        )?,
        ::lz_schema::expr::arith::subtract_int(
            ::lz_schema::expr::arith::subtract_int(
                ::lz_schema::expr::arith::subtract_int(1i64, i64::MIN)?,
                ::lz_schema::expr::arith::negate_int(v.target_sm)?,
            )?,
            ::lz_schema::expr::arith::modulo_int(v.b, i64::MIN)?,
        )?,
    ))()
        .map(Value::Int)
}
fn expression_84(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >((v.p || true) == (0.5f64 == 1.0f64 || 0.5f64 == v.y || 0.5f64 == 0.0f64))
        .map(Value::Bool)
}
fn expression_85(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::ceil_divide_int(
            ::lz_schema::expr::arith::abs_int(9223372036854775807i64)?,
            ::lz_schema::expr::arith::max_int(
                ::lz_schema::expr::arith::max_int(v.target_sm, v.a),
                0i64,
            ),
        )?
            <= ::lz_schema::expr::arith::subtract_int(
                ::lz_schema::expr::arith::multiply_int(128i64, 0i64)?,
                -3i64,
            )?
            && ::lz_schema::expr::arith::subtract_int(
                ::lz_schema::expr::arith::multiply_int(128i64, 0i64)?,
                -3i64,
            )?
                < ::lz_schema::expr::arith::add_int(
                    i64::MIN,
                    ::lz_schema::expr::arith::ceil_divide_int(v.target_sm, i64::MIN)?,
                )?,
    ))()
        .map(Value::Bool)
}
fn expression_86(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::ceil_divide_int(v.target_sm, v.b)?,
        )
            < ::lz_schema::expr::arith::floor_divide_float(
                ::lz_schema::expr::arith::divide_float(0.5f64, v.x)?,
                9.223372036854776e18f64,
            )?
            && ::lz_schema::expr::arith::floor_divide_float(
                ::lz_schema::expr::arith::divide_float(0.5f64, v.x)?,
                9.223372036854776e18f64,
            )?
                != ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::ceil_divide_int(
                        v.b,
                        ::lz_schema::expr::arith::modulo_int(v.target_sm, 128i64)?,
                    )?,
                )
            || (::lz_schema::expr::arith::multiply_float(
                1e-5f64,
                ::lz_schema::expr::arith::widen(v.target_sm),
            )?
                > ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::subtract_int(9223372036854775807i64, 0i64)?,
                )) == false,
    ))()
        .map(Value::Bool)
}
fn expression_87(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if true || !true && v.p { v.layout } else { 0u32 })
        .map(Value::Enum)
}
fn expression_88(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::floor_divide_int(
        ::lz_schema::expr::arith::ceil_divide_int(-3i64, -3i64)?,
        if false == false {
            ::lz_schema::expr::arith::add_int(i64::MIN, 2i64)?
        } else {
            ::lz_schema::expr::arith::add_int(v.a, 7i64)?
        },
    ))()
        .map(Value::Int)
}
fn expression_89(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::multiply_float(
        ::lz_schema::expr::arith::divide_float(
            ::lz_schema::expr::arith::divide_float(
                ::lz_schema::expr::arith::sqrt_float(7.0f64)?,
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::modulo_int(
                        ::lz_schema::expr::arith::floor_divide_int(v.target_sm, -3i64)?,
                        -3i64,
                    )?,
                ),
            )?,
            ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::ceil_divide_int(
                    ::lz_schema::expr::arith::add_int(128i64, 2i64)?,
                    9223372036854775807i64,
                )?,
            ),
        )?,
        ::lz_schema::expr::arith::widen(
            if false && !false || true {
                ::lz_schema::expr::arith::min_int(9223372036854775807i64, -3i64)
            } else {
                ::lz_schema::expr::arith::floor_divide_int(
                    ::lz_schema::expr::arith::multiply_int(
                        9223372036854775807i64,
                        9223372036854775807i64,
                    )?,
                    -3i64,
                )?
            },
        ),
    ))()
        .map(Value::Float)
}
fn expression_90(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if (if v.q { true } else { v.p }) { v.layout } else { 1u32 })
        .map(Value::Enum)
}
fn expression_91(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        i64,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::min_int(
            ::lz_schema::expr::arith::negate_int(
                ::lz_schema::expr::arith::multiply_int(2i64, v.target_sm)?,
            )?,
            ::lz_schema::expr::arith::negate_int(
                ::lz_schema::expr::arith::modulo_int(v.target_sm, 2i64)?,
            )?,
        ),
    ))()
        .map(Value::Int)
}
fn expression_92(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::divide_float(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::ceil_divide_int(
                ::lz_schema::expr::arith::floor_divide_int(
                    ::lz_schema::expr::arith::modulo_int(128i64, i64::MIN)?,
                    ::lz_schema::expr::arith::abs_int(0i64)?,
                )?,
                ::lz_schema::expr::arith::modulo_int(
                    ::lz_schema::expr::arith::floor_divide_int(v.b, -3i64)?,
                    ::lz_schema::expr::arith::floor_divide_int(7i64, i64::MIN)?,
                )?,
            )?,
        ),
        ::lz_schema::expr::arith::divide_float(
            1e-5f64,
            ::lz_schema::expr::arith::widen(
                if v.given_mask && v.p {
                    ::lz_schema::expr::arith::multiply_int(7i64, v.b)?
                } else {
                    ::lz_schema::expr::arith::max_int(
                        ::lz_schema::expr::arith::max_int(v.b, i64::MIN),
                        2i64,
                    )
                },
            ),
        )?,
    ))()
        .map(Value::Float)
}
fn expression_93(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::modulo_int(
        ::lz_schema::expr::arith::modulo_int(v.target_sm, 2i64)?,
        i64::MIN,
    ))()
        .map(Value::Int)
}
fn expression_94(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::subtract_float(
        ::lz_schema::expr::arith::divide_float(
            ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::add_int(2i64, v.target_sm)?,
            ),
            ::lz_schema::expr::arith::divide_float(-3.0f64, v.x)?,
        )?,
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::subtract_int(
                ::lz_schema::expr::arith::subtract_int(7i64, 9223372036854775807i64)?,
                ::lz_schema::expr::arith::modulo_int(-3i64, 9223372036854775807i64)?,
            )?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_95(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        !(::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::modulo_int(
                ::lz_schema::expr::arith::ceil_divide_int(-3i64, v.target_sm)?,
                ::lz_schema::expr::arith::add_int(
                    ::lz_schema::expr::arith::subtract_int(128i64, 1i64)?,
                    7i64,
                )?,
            )?,
        )
            <= ::lz_schema::expr::arith::multiply_float(
                ::lz_schema::expr::arith::modulo_float(2500.0f64, 0.0f64)?,
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::add_int(9223372036854775807i64, 2i64)?,
                ),
            )?),
    ))()
        .map(Value::Bool)
}
fn expression_96(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        i64,
        ::lz_schema::expr::arith::EvalError,
    >(9223372036854775807i64)
        .map(Value::Int)
}
fn expression_97(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::negate_int(if false { -3i64 } else { i64::MIN })?
            >= ::lz_schema::expr::arith::ceil_divide_int(
                ::lz_schema::expr::arith::multiply_int(9223372036854775807i64, v.a)?,
                7i64,
            )?,
    ))()
        .map(Value::Bool)
}
fn expression_98(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::abs_float(
            ::lz_schema::expr::arith::sqrt_float(
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::subtract_int(
                        ::lz_schema::expr::arith::add_int(
                            v.b,
                            ::lz_schema::expr::arith::modulo_int(2i64, 1i64)?,
                        )?,
                        if v.q { v.target_sm } else { v.b },
                    )?,
                ),
            )?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_99(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if false { v.layout } else { 2u32 })
        .map(Value::Enum)
}
fn expression_100(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::negate_int(
        ::lz_schema::expr::arith::floor_divide_int(
            ::lz_schema::expr::arith::subtract_int(i64::MIN, 0i64)?,
            -2i64,
        )?,
    ))()
        .map(Value::Int)
}
fn expression_101(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ({
            let __looked_for = ::lz_schema::expr::arith::widen(v.a);
            __looked_for == 7.0f64
                || __looked_for
                    == ::lz_schema::expr::arith::divide_float(
                        ::lz_schema::expr::arith::abs_float(1e300f64),
                        ::lz_schema::expr::arith::widen(
                            if v.q { 9223372036854775807i64 } else { 128i64 },
                        ),
                    )? || __looked_for == 2.0f64
        })
            || !((if v.p { v.layout } else { 0u32 })
                == (if v.q { v.layout } else { 2u32 })),
    ))()
        .map(Value::Bool)
}
fn expression_102(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::modulo_int(
        ::lz_schema::expr::arith::subtract_int(v.b, 1i64)?,
        ::lz_schema::expr::arith::floor_divide_int(128i64, i64::MIN)?,
    ))()
        .map(Value::Int)
}
fn expression_103(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::subtract_int(
        ::lz_schema::expr::arith::floor_divide_int(
            ::lz_schema::expr::arith::add_int(
                ::lz_schema::expr::arith::floor_divide_int(v.a, 9223372036854775807i64)?,
                9223372036854775807i64,
            )?,
            ::lz_schema::expr::arith::negate_int(i64::MIN)?,
        )?,
        i64::MIN,
    ))()
        .map(Value::Int)
}
fn expression_104(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(
            if !(v.p == v.given_mask)
                == (v.mode == 0u32 || i64::MIN == 0i64 && 0i64 < v.b)
            {
                v.layout
            } else {
                0u32
            },
        )
        .map(Value::Enum)
}
fn expression_105(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
            ::lz_schema::expr::arith::negate_float(v.x)
                > (if false { 2500.0f64 } else { 0.0f64 }),
        )
        .map(Value::Bool)
}
fn expression_106(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        (-3i64 < 2i64) == (v.given_mask || v.p)
            || -1i64 < 1i64
                && ::lz_schema::expr::arith::widen(1i64)
                    < ::lz_schema::expr::arith::multiply_float(1e-5f64, v.y)?,
    ))()
        .map(Value::Bool)
}
fn expression_107(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::multiply_float(
        ::lz_schema::expr::arith::negate_float(
            ::lz_schema::expr::arith::max_float(
                ::lz_schema::expr::arith::max_float(
                    ::lz_schema::expr::arith::divide_float(
                        7.0f64,
                        9.223372036854776e18f64,
                    )?,
                    v.x,
                ),
                if true { v.y } else { v.y },
            ),
        ),
        ::lz_schema::expr::arith::widen(
            if ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::floor_divide_int(v.a, 9223372036854775807i64)?,
            ) != ::lz_schema::expr::arith::multiply_float(1e300f64, -3.0f64)?
            {
                ::lz_schema::expr::arith::subtract_int(1i64, 0i64)?
            } else {
                if 1e300f64 <= 7.0f64 && 7.0f64 < v.x {
                    ::lz_schema::expr::arith::max_int(
                        ::lz_schema::expr::arith::max_int(9223372036854775807i64, 0i64),
                        v.target_sm,
                    )
                } else {
                    ::lz_schema::expr::arith::multiply_int(i64::MIN, 2i64)?
                }
            },
        ),
    ))()
        .map(Value::Float)
}
fn expression_108(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::modulo_int(
        ::lz_schema::expr::arith::add_int(
            ::lz_schema::expr::arith::add_int(v.target_sm, 9223372036854775807i64)?,
            v.a,
        )?,
        -7i64,
    ))()
        .map(Value::Int)
}
fn expression_109(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        !(0.0f64 == ::lz_schema::expr::arith::floor_divide_float(0.0f64, 1e300f64)?
            && ::lz_schema::expr::arith::floor_divide_float(0.0f64, 1e300f64)?
                >= ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::subtract_int(v.b, 128i64)?,
                )),
    ))()
        .map(Value::Bool)
}
fn expression_110(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::subtract_int(
        ::lz_schema::expr::arith::subtract_int(2i64, 9223372036854775807i64)?,
        128i64,
    ))()
        .map(Value::Int)
}
fn expression_111(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(
            if -3.0f64 == 2500.0f64 || -3.0f64 == 0.5f64
                || -3.0f64 == ::lz_schema::expr::arith::widen(v.b)
            {
                v.layout
            } else {
                0u32
            },
        )
        .map(Value::Enum)
}
fn expression_112(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::add_int(
        ::lz_schema::expr::arith::modulo_int(
            ::lz_schema::expr::arith::subtract_int(v.b, v.target_sm)?,
            ::lz_schema::expr::arith::subtract_int(9223372036854775807i64, 1i64)?,
        )?,
        ::lz_schema::expr::arith::add_int(
            ::lz_schema::expr::arith::add_int(7i64, -3i64)?,
            128i64,
        )?,
    ))()
        .map(Value::Int)
}
fn expression_113(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        if v.x == 0.5f64
            || v.x
                == ::lz_schema::expr::arith::multiply_float(
                    ::lz_schema::expr::arith::divide_float(v.x, v.x)?,
                    ::lz_schema::expr::arith::widen(
                        ::lz_schema::expr::arith::subtract_int(128i64, i64::MIN)?,
                    ),
                )? || v.x == 2500.0f64
        {
            ::lz_schema::expr::arith::add_float(
                0.0f64,
                ::lz_schema::expr::arith::add_float(
                    ::lz_schema::expr::arith::max_float(
                        ::lz_schema::expr::arith::max_float(0.0f64, 1e300f64),
                        1e300f64,
                    ),
                    ::lz_schema::expr::arith::widen(if v.q { 2i64 } else { v.target_sm }),
                )?,
            )?
        } else {
            ::lz_schema::expr::arith::min_float(
                ::lz_schema::expr::arith::divide_float(
                    -9.223372036854776e18f64,
                    ::lz_schema::expr::arith::modulo_float(2500.0f64, 2.0f64)?,
                )?,
                ::lz_schema::expr::arith::negate_float(
                    ::lz_schema::expr::arith::multiply_float(
                        v.x,
                        9.223372036854776e18f64,
                    )?,
                ),
            )
        },
    ))()
        .map(Value::Float)
}
fn expression_114(v: &Variables) -> Result<Value, EvalError> {
    ::lz_schema::expr::arith::subtract_int(
            if v.given_mask { 9223372036854775807i64 } else { 0i64 },
            9223372036854775807i64,
        )
        .map(Value::Int)
}
fn expression_115(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ({
            let __looked_for = ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::negate_int(v.b)?,
            );
            __looked_for != ::lz_schema::expr::arith::widen(v.b)
                && __looked_for != ::lz_schema::expr::arith::modulo_float(v.x, 1e300f64)?
                && __looked_for != ::lz_schema::expr::arith::widen(v.b)
        }) || !true && v.q,
    ))()
        .map(Value::Bool)
}
fn expression_116(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::widen(v.a)
            < ::lz_schema::expr::arith::negate_float(2500.0f64)
            && ::lz_schema::expr::arith::negate_float(2500.0f64)
                != ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::modulo_int(
                        0i64,
                        ::lz_schema::expr::arith::ceil_divide_int(7i64, v.target_sm)?,
                    )?,
                )
            || ({
                let __looked_for = if v.layout == v.layout { v.layout } else { 2u32 };
                __looked_for != 2u32 && __looked_for != 0u32
            }),
    ))()
        .map(Value::Bool)
}
fn expression_117(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::subtract_int(-3i64, i64::MIN)?
            < ::lz_schema::expr::arith::add_int(0i64, 128i64)?
            && ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::add_int(0i64, 128i64)?,
            )
                != ::lz_schema::expr::arith::max_float(
                    ::lz_schema::expr::arith::max_float(0.5f64, v.x),
                    2500.0f64,
                ),
    ))()
        .map(Value::Bool)
}
fn expression_118(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(::lz_schema::expr::arith::negate_float(v.x) < 0.5f64 && !false && v.p)
        .map(Value::Bool)
}
fn expression_119(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<i64, ::lz_schema::expr::arith::EvalError>(v.a)
        .map(Value::Int)
}
fn expression_120(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(!(if v.given_mask { false } else { v.q }))
        .map(Value::Bool)
}
fn expression_121(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::modulo_float(
        ::lz_schema::expr::arith::negate_float(
            ::lz_schema::expr::arith::divide_float(0.0f64, 2500.0f64)?,
        ),
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::floor_divide_int(
                if v.given_mask { i64::MIN } else { 9223372036854775807i64 },
                ::lz_schema::expr::arith::ceil_divide_int(1i64, 7i64)?,
            )?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_122(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::subtract_float(
        ::lz_schema::expr::arith::sqrt_float(
            ::lz_schema::expr::arith::floor_divide_float(
                ::lz_schema::expr::arith::negate_float(v.y),
                ::lz_schema::expr::arith::divide_float(0.5f64, -3.0f64)?,
            )?,
        )?,
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::subtract_int(
                2i64,
                ::lz_schema::expr::arith::floor_divide_int(v.target_sm, 128i64)?,
            )?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_123(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::ceil_divide_int(
        ::lz_schema::expr::arith::modulo_int(128i64, 1i64)?,
        -128i64,
    ))()
        .map(Value::Int)
}
fn expression_124(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >({
            let __looked_for = ::lz_schema::expr::arith::max_int(
                ::lz_schema::expr::arith::max_int(128i64, 7i64),
                v.b,
            );
            __looked_for == 9223372036854775807i64 || __looked_for == 2i64
                || __looked_for == 9223372036854775807i64
        })
        .map(Value::Bool)
}
fn expression_125(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::ceil_divide_int(
                if v.given_mask { v.b } else { 2i64 },
                ::lz_schema::expr::arith::floor_divide_int(i64::MIN, v.target_sm)?,
            )?,
        )
            >= ::lz_schema::expr::arith::sqrt_float(
                ::lz_schema::expr::arith::sqrt_float(1e300f64)?,
            )? && (v.given_mask && v.given_mask) == v.p
            && (v.p || v.given_mask) == (v.p || v.p),
    ))()
        .map(Value::Bool)
}
fn expression_126(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(v.layout != 0u32 && v.layout != 1u32)
        .map(Value::Bool)
}
fn expression_127(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(
            if v.x != 9.223372036854776e18f64 || false && v.given_mask {
                v.layout
            } else {
                2u32
            },
        )
        .map(Value::Enum)
}
fn expression_128(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        !(v.y
            <= ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::subtract_int(
                    0i64,
                    ::lz_schema::expr::arith::multiply_int(v.target_sm, i64::MIN)?,
                )?,
            )
            && ::lz_schema::expr::arith::subtract_int(
                0i64,
                ::lz_schema::expr::arith::multiply_int(v.target_sm, i64::MIN)?,
            )? != ::lz_schema::expr::arith::subtract_int(128i64, v.b)?
            && (0.5f64 < 1.0f64 && 1i64 < v.target_sm || v.p == v.p)),
    ))()
        .map(Value::Bool)
}
fn expression_129(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::sqrt_float(
        ::lz_schema::expr::arith::sqrt_float(128.0f64)?,
    ))()
        .map(Value::Float)
}
fn expression_130(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::add_float(
        ::lz_schema::expr::arith::divide_float(
            ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::multiply_int(v.b, v.b)?,
            ),
            ::lz_schema::expr::arith::widen(0i64),
        )?,
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::subtract_int(
                0i64,
                ::lz_schema::expr::arith::modulo_int(9223372036854775807i64, v.b)?,
            )?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_131(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        (v.x
            > ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::ceil_divide_int(v.a, v.b)?,
            ) && !v.given_mask || v.q) == !v.p,
    ))()
        .map(Value::Bool)
}
fn expression_132(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >((true && v.given_mask) == (v.given_mask == v.q))
        .map(Value::Bool)
}
fn expression_133(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(!((if v.p { v.given_mask } else { v.q }) == (v.given_mask && v.p)))
        .map(Value::Bool)
}
fn expression_134(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::subtract_int(
        ::lz_schema::expr::arith::abs_int(
            ::lz_schema::expr::arith::modulo_int(
                -1i64,
                ::lz_schema::expr::arith::subtract_int(
                    9223372036854775807i64,
                    ::lz_schema::expr::arith::floor_divide_int(
                        0i64,
                        9223372036854775807i64,
                    )?,
                )?,
            )?,
        )?,
        ::lz_schema::expr::arith::floor_divide_int(
            ::lz_schema::expr::arith::add_int(
                0i64,
                ::lz_schema::expr::arith::floor_divide_int(1i64, 1i64)?,
            )?,
            if v.given_mask || true {
                ::lz_schema::expr::arith::subtract_int(
                    ::lz_schema::expr::arith::subtract_int(v.b, 128i64)?,
                    7i64,
                )?
            } else {
                ::lz_schema::expr::arith::max_int(
                    ::lz_schema::expr::arith::max_int(v.a, v.b),
                    -3i64,
                )
            },
        )?,
    ))()
        .map(Value::Int)
}
fn expression_135(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::modulo_int(7i64, 0i64)?,
        ) == ::lz_schema::expr::arith::multiply_float(1e300f64, 7.0f64)?,
    ))()
        .map(Value::Bool)
}
fn expression_136(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::negate_int(
        ::lz_schema::expr::arith::min_int(
            ::lz_schema::expr::arith::add_int(v.a, 1i64)?,
            ::lz_schema::expr::arith::add_int(i64::MIN, -3i64)?,
        ),
    ))()
        .map(Value::Int)
}
fn expression_137(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<bool, ::lz_schema::expr::arith::EvalError>(true)
        .map(Value::Bool)
}
fn expression_138(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::add_int(
        ::lz_schema::expr::arith::multiply_int(128i64, -3i64)?,
        -3i64,
    ))()
        .map(Value::Int)
}
fn expression_139(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::subtract_float(
        ::lz_schema::expr::arith::floor_divide_float(v.y, 1.0f64)?,
        ::lz_schema::expr::arith::widen(0i64),
    ))()
        .map(Value::Float)
}
fn expression_140(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >({
        let __looked_for = ::lz_schema::expr::arith::ceil_divide_int(
            ::lz_schema::expr::arith::subtract_int(
                ::lz_schema::expr::arith::subtract_int(7i64, 2i64)?,
                9223372036854775807i64,
            )?,
            ::lz_schema::expr::arith::floor_divide_int(
                ::lz_schema::expr::arith::modulo_int(0i64, i64::MIN)?,
                v.b,
            )?,
        )?;
        __looked_for == 2i64
            || __looked_for
                == ::lz_schema::expr::arith::subtract_int(
                    v.target_sm,
                    ::lz_schema::expr::arith::floor_divide_int(
                        ::lz_schema::expr::arith::floor_divide_int(
                            9223372036854775807i64,
                            7i64,
                        )?,
                        ::lz_schema::expr::arith::floor_divide_int(
                            ::lz_schema::expr::arith::floor_divide_int(
                                1i64,
                                9223372036854775807i64,
                            )?,
                            9223372036854775807i64,
                        )?,
                    )?,
                )? || __looked_for == v.b
    }))()
        .map(Value::Bool)
}
fn expression_141(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(!(true || false))
        .map(Value::Bool)
}
fn expression_142(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::add_int(
                ::lz_schema::expr::arith::multiply_int(1i64, v.a)?,
                ::lz_schema::expr::arith::min_int(v.target_sm, 0i64),
            )?,
        )
            <= (if v.q && v.given_mask {
                if v.given_mask { 2500.0f64 } else { 1e300f64 }
            } else {
                ::lz_schema::expr::arith::floor_divide_float(1e300f64, v.y)?
            }),
    ))()
        .map(Value::Bool)
}
fn expression_143(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::min_float(
            ::lz_schema::expr::arith::add_float(
                ::lz_schema::expr::arith::subtract_float(
                    if v.given_mask { v.x } else { 0.5f64 },
                    ::lz_schema::expr::arith::widen(v.b),
                )?,
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::modulo_int(
                        ::lz_schema::expr::arith::multiply_int(128i64, i64::MIN)?,
                        ::lz_schema::expr::arith::max_int(
                            ::lz_schema::expr::arith::max_int(i64::MIN, 1i64),
                            9223372036854775807i64,
                        ),
                    )?,
                ),
            )?,
            1e300f64,
        ),
    ))()
        .map(Value::Float)
}
fn expression_144(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(if v.given_mask == v.given_mask { true && v.p } else { v.y < 2500.0f64 })
        .map(Value::Bool)
}
fn expression_145(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
            ((if true { v.p } else { v.given_mask }) && !false)
                == (if v.target_sm < 7i64 {
                    v.x == 0.0f64 || v.x == 0.0f64 || v.x == 0.5f64
                } else {
                    v.p && !true || true
                }),
        )
        .map(Value::Bool)
}
fn expression_146(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::add_int(
                9223372036854775807i64,
                ::lz_schema::expr::arith::modulo_int(
                    ::lz_schema::expr::arith::floor_divide_int(7i64, v.b)?,
                    7i64,
                )?,
            )?,
        )
            <= ::lz_schema::expr::arith::add_float(
                ::lz_schema::expr::arith::divide_float(
                    -1.0f64,
                    ::lz_schema::expr::arith::widen(
                        ::lz_schema::expr::arith::ceil_divide_int(
                            9223372036854775807i64,
                            0i64,
                        )?,
                    ),
                )?,
                ::lz_schema::expr::arith::widen(
                    if v.p && v.p {
                        ::lz_schema::expr::arith::negate_int(v.target_sm)?
                    } else {
                        128i64
                    },
                ),
            )?,
    ))()
        .map(Value::Bool)
}
fn expression_147(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<f64, ::lz_schema::expr::arith::EvalError>(2500.0f64)
        .map(Value::Float)
}
fn expression_148(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<f64, ::lz_schema::expr::arith::EvalError>(v.x)
        .map(Value::Float)
}
fn expression_149(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(
        if (::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::negate_int(i64::MIN)?,
        ) < ::lz_schema::expr::arith::negate_float(v.x))
            == (0i64 <= -3i64 && -3i64 >= v.b || !v.q && true)
        {
            v.layout
        } else {
            2u32
        },
    ))()
        .map(Value::Enum)
}
fn expression_150(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if !false { v.layout } else { 0u32 })
        .map(Value::Enum)
}
fn expression_151(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::ceil_divide_int(-3i64, v.a)?,
        ) > ::lz_schema::expr::arith::negate_float(2500.0f64) && !false || true,
    ))()
        .map(Value::Bool)
}
fn expression_152(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >((v.mode == 0u32) == true)
        .map(Value::Bool)
}
fn expression_153(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(false && !v.p && v.given_mask && v.q == true)
        .map(Value::Bool)
}
fn expression_154(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::negate_int(
        ::lz_schema::expr::arith::ceil_divide_int(
            ::lz_schema::expr::arith::multiply_int(9223372036854775807i64, 2i64)?,
            ::lz_schema::expr::arith::floor_divide_int(v.b, v.a)?,
        )?,
    ))()
        .map(Value::Int)
}
fn expression_155(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::modulo_int(
        v.target_sm,
        ::lz_schema::expr::arith::add_int(
            ::lz_schema::expr::arith::min_int(
                ::lz_schema::expr::arith::abs_int(9223372036854775807i64)?,
                ::lz_schema::expr::arith::subtract_int(-3i64, -3i64)?,
            ),
            ::lz_schema::expr::arith::ceil_divide_int(
                ::lz_schema::expr::arith::ceil_divide_int(-3i64, 2i64)?,
                ::lz_schema::expr::arith::subtract_int(
                    ::lz_schema::expr::arith::multiply_int(-3i64, 7i64)?,
                    9223372036854775807i64,
                )?,
            )?,
        )?,
    ))()
        .map(Value::Int)
}
fn expression_156(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::divide_float(v.x, 1e300f64)?
            >= ::lz_schema::expr::arith::floor_divide_float(
                2500.0f64,
                ::lz_schema::expr::arith::widen(v.b),
            )?,
    ))()
        .map(Value::Bool)
}
fn expression_157(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        i64,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::min_int(
            128i64,
            ::lz_schema::expr::arith::multiply_int(2i64, 9223372036854775807i64)?,
        ),
    ))()
        .map(Value::Int)
}
fn expression_158(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::multiply_float(
        ::lz_schema::expr::arith::negate_float(
            ::lz_schema::expr::arith::multiply_float(
                0.5f64,
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::floor_divide_int(
                        v.b,
                        9223372036854775807i64,
                    )?,
                ),
            )?,
        ),
        0.0f64,
    ))()
        .map(Value::Float)
}
fn expression_159(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if v.given_mask { v.layout } else { 0u32 })
        .map(Value::Enum)
}
fn expression_160(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(true || !true || false)
        .map(Value::Bool)
}
fn expression_161(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<bool, ::lz_schema::expr::arith::EvalError>(!true)
        .map(Value::Bool)
}
fn expression_162(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >({
            let __looked_for = ::lz_schema::expr::arith::widen(
                if true { 128i64 } else { v.a },
            );
            __looked_for != 9.223372036854776e18f64
                && __looked_for != (if v.q { 0.0f64 } else { v.y })
                && __looked_for != 0.0f64
        })
        .map(Value::Bool)
}
fn expression_163(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::max_float(
            ::lz_schema::expr::arith::max_float(
                ::lz_schema::expr::arith::max_float(
                    ::lz_schema::expr::arith::max_float(
                        if v.q { 1e300f64 } else { v.y },
                        1e-5f64,
                    ),
                    ::lz_schema::expr::arith::divide_float(
                        1e300f64,
                        ::lz_schema::expr::arith::widen(v.a),
                    )?,
                ),
                1e-5f64,
            ),
            v.y,
        ),
    ))()
        .map(Value::Float)
}
fn expression_164(v: &Variables) -> Result<Value, EvalError> {
    ::lz_schema::expr::arith::ceil_divide_int(i64::MIN, 7i64).map(Value::Int)
}
fn expression_165(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(7i64 <= v.a && v.a < 1i64 && v.given_mask == false)
        .map(Value::Bool)
}
fn expression_166(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::subtract_int(
        ::lz_schema::expr::arith::ceil_divide_int(
            ::lz_schema::expr::arith::ceil_divide_int(0i64, 1i64)?,
            ::lz_schema::expr::arith::abs_int(1i64)?,
        )?,
        ::lz_schema::expr::arith::ceil_divide_int(
            ::lz_schema::expr::arith::modulo_int(1i64, 1i64)?,
            ::lz_schema::expr::arith::negate_int(v.b)?,
        )?,
    ))()
        .map(Value::Int)
}
fn expression_167(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::negate_int(
                ::lz_schema::expr::arith::ceil_divide_int(
                    if v.q { v.target_sm } else { 7i64 },
                    if false { v.target_sm } else { v.b },
                )?,
            )?,
        )
            == ::lz_schema::expr::arith::divide_float(
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::add_int(
                        if v.given_mask { 1i64 } else { 9223372036854775807i64 },
                        ::lz_schema::expr::arith::floor_divide_int(
                            9223372036854775807i64,
                            v.target_sm,
                        )?,
                    )?,
                ),
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::negate_int(
                        ::lz_schema::expr::arith::modulo_int(1i64, 2i64)?,
                    )?,
                ),
            )?
            && ::lz_schema::expr::arith::divide_float(
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::add_int(
                        if v.given_mask { 1i64 } else { 9223372036854775807i64 },
                        ::lz_schema::expr::arith::floor_divide_int(
                            9223372036854775807i64,
                            v.target_sm,
                        )?,
                    )?,
                ),
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::negate_int(
                        ::lz_schema::expr::arith::modulo_int(1i64, 2i64)?,
                    )?,
                ),
            )?
                >= ::lz_schema::expr::arith::widen(
                    if (if true || v.q {
                        v.mode == 0u32
                    } else {
                        v.y <= v.y && v.y >= -3.0f64
                    }) {
                        7i64
                    } else {
                        ::lz_schema::expr::arith::ceil_divide_int(
                            v.a,
                            ::lz_schema::expr::arith::modulo_int(v.a, i64::MIN)?,
                        )?
                    },
                ),
    ))()
        .map(Value::Bool)
}
fn expression_168(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
            if v.p || !v.q || true {
                {
                    let __looked_for = ::lz_schema::expr::arith::widen(v.a);
                    __looked_for != 0.0f64 && __looked_for != 1e300f64
                        && __looked_for != ::lz_schema::expr::arith::widen(v.a)
                }
            } else {
                ::lz_schema::expr::arith::widen(v.b) >= v.y
            },
        )
        .map(Value::Bool)
}
fn expression_169(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::negate_float(
            ::lz_schema::expr::arith::sqrt_float(
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::floor_divide_int(
                        9223372036854775807i64,
                        7i64,
                    )?,
                ),
            )?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_170(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(
        if ::lz_schema::expr::arith::max_float(
            ::lz_schema::expr::arith::max_float(
                ::lz_schema::expr::arith::divide_float(1e300f64, 1.0f64)?,
                2500.0f64,
            ),
            ::lz_schema::expr::arith::divide_float(1.0f64, 1e300f64)?,
        )
            != ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::add_int(
                    ::lz_schema::expr::arith::negate_int(v.a)?,
                    ::lz_schema::expr::arith::modulo_int(9223372036854775807i64, 1i64)?,
                )?,
            )
        {
            v.layout
        } else {
            1u32
        },
    ))()
        .map(Value::Enum)
}
fn expression_171(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::modulo_int(
        ::lz_schema::expr::arith::subtract_int(
            v.b,
            ::lz_schema::expr::arith::floor_divide_int(v.target_sm, 0i64)?,
        )?,
        ::lz_schema::expr::arith::modulo_int(
            ::lz_schema::expr::arith::modulo_int(v.target_sm, 9223372036854775807i64)?,
            2i64,
        )?,
    ))()
        .map(Value::Int)
}
fn expression_172(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::modulo_float(
        ::lz_schema::expr::arith::min_float(
            ::lz_schema::expr::arith::sqrt_float(::lz_schema::expr::arith::widen(v.b))?,
            ::lz_schema::expr::arith::multiply_float(2500.0f64, 2.0f64)?,
        ),
        ::lz_schema::expr::arith::multiply_float(
            ::lz_schema::expr::arith::floor_divide_float(2500.0f64, 0.0f64)?,
            0.0f64,
        )?,
    ))()
        .map(Value::Float)
}
fn expression_173(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::divide_float(
            ::lz_schema::expr::arith::max_float(
                ::lz_schema::expr::arith::max_float(v.x, v.x),
                1e-5f64,
            ),
            -128.0f64,
        )?
            < ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::abs_int(
                    ::lz_schema::expr::arith::ceil_divide_int(
                        ::lz_schema::expr::arith::floor_divide_int(1i64, -3i64)?,
                        ::lz_schema::expr::arith::add_int(0i64, 0i64)?,
                    )?,
                )?,
            )
            && ::lz_schema::expr::arith::abs_int(
                ::lz_schema::expr::arith::ceil_divide_int(
                    ::lz_schema::expr::arith::floor_divide_int(1i64, -3i64)?,
                    ::lz_schema::expr::arith::add_int(0i64, 0i64)?,
                )?,
            )?
                < (if v.mode == 1u32 {
                    ::lz_schema::expr::arith::modulo_int(
                        ::lz_schema::expr::arith::multiply_int(
                            ::lz_schema::expr::arith::modulo_int(v.a, 1i64)?,
                            0i64,
                        )?,
                        ::lz_schema::expr::arith::ceil_divide_int(v.b, 2i64)?,
                    )?
                } else {
                    ::lz_schema::expr::arith::ceil_divide_int(
                        128i64,
                        ::lz_schema::expr::arith::subtract_int(7i64, 128i64)?,
                    )?
                }),
    ))()
        .map(Value::Bool)
}
fn expression_174(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::multiply_int(
        ::lz_schema::expr::arith::ceil_divide_int(v.b, v.a)?,
        ::lz_schema::expr::arith::negate_int(v.target_sm)?,
    ))()
        .map(Value::Int)
}
fn expression_175(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::floor_divide_float(
        ::lz_schema::expr::arith::divide_float(
            ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::ceil_divide_int(7i64, 0i64)?,
            ),
            ::lz_schema::expr::arith::negate_float(v.y),
        )?,
        ::lz_schema::expr::arith::divide_float(
            0.0f64,
            ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::max_int(
                    ::lz_schema::expr::arith::max_int(1i64, v.b),
                    -3i64,
                ),
            ),
        )?,
    ))()
        .map(Value::Float)
}
fn expression_176(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        if v.p || !true || !v.p || v.q {
            ::lz_schema::expr::arith::abs_float(
                ::lz_schema::expr::arith::modulo_float(
                    ::lz_schema::expr::arith::floor_divide_float(
                        v.x,
                        9.223372036854776e18f64,
                    )?,
                    ::lz_schema::expr::arith::widen(
                        ::lz_schema::expr::arith::max_int(
                            ::lz_schema::expr::arith::max_int(i64::MIN, 2i64),
                            128i64,
                        ),
                    ),
                )?,
            )
        } else {
            ::lz_schema::expr::arith::divide_float(
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::ceil_divide_int(
                        1i64,
                        ::lz_schema::expr::arith::ceil_divide_int(7i64, -3i64)?,
                    )?,
                ),
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::multiply_int(
                        ::lz_schema::expr::arith::abs_int(128i64)?,
                        ::lz_schema::expr::arith::negate_int(i64::MIN)?,
                    )?,
                ),
            )?
        },
    ))()
        .map(Value::Float)
}
fn expression_177(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::subtract_int(
        ::lz_schema::expr::arith::floor_divide_int(v.target_sm, v.b)?,
        128i64,
    ))()
        .map(Value::Int)
}
fn expression_178(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(
            if (if 0i64 < 2i64 {
                v.layout != 0u32
            } else {
                1e300f64 < 9.223372036854776e18f64 && 9223372036854775807i64 >= v.a
            }) {
                v.layout
            } else {
                2u32
            },
        )
        .map(Value::Enum)
}
fn expression_179(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(
            if !(!v.given_mask == (v.p || !v.given_mask && v.given_mask)) {
                v.layout
            } else {
                1u32
            },
        )
        .map(Value::Enum)
}
fn expression_180(v: &Variables) -> Result<Value, EvalError> {
    ::lz_schema::expr::arith::negate_int(v.target_sm).map(Value::Int)
}
fn expression_181(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        i64,
        ::lz_schema::expr::arith::EvalError,
    >(
        if -2i64 == i64::MIN
            || -2i64 == ::lz_schema::expr::arith::modulo_int(7i64, -3i64)?
            || -2i64 == v.b
        {
            if v.given_mask || !v.given_mask || true {
                if v.q { v.b } else { 2i64 }
            } else {
                ::lz_schema::expr::arith::subtract_int(v.target_sm, 2i64)?
            }
        } else {
            if v.given_mask {
                v.target_sm
            } else {
                ::lz_schema::expr::arith::add_int(v.a, v.b)?
            }
        },
    ))()
        .map(Value::Int)
}
fn expression_182(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<f64, ::lz_schema::expr::arith::EvalError>(1e300f64)
        .map(Value::Float)
}
fn expression_183(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(!v.p && !true && v.p)
        .map(Value::Bool)
}
fn expression_184(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >({
        let __looked_for = ::lz_schema::expr::arith::divide_float(
            ::lz_schema::expr::arith::widen(::lz_schema::expr::arith::negate_int(v.a)?),
            ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::ceil_divide_int(v.a, 7i64)?,
            ),
        )?;
        __looked_for == 9.223372036854776e18f64
            || __looked_for == ::lz_schema::expr::arith::abs_float(v.y)
            || __looked_for == 9.223372036854776e18f64
    }))()
        .map(Value::Bool)
}
fn expression_185(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::negate_int(
        ::lz_schema::expr::arith::floor_divide_int(
            ::lz_schema::expr::arith::ceil_divide_int(
                ::lz_schema::expr::arith::add_int(7i64, 1i64)?,
                -2i64,
            )?,
            ::lz_schema::expr::arith::max_int(
                ::lz_schema::expr::arith::max_int(
                    ::lz_schema::expr::arith::multiply_int(
                        9223372036854775807i64,
                        0i64,
                    )?,
                    v.b,
                ),
                ::lz_schema::expr::arith::subtract_int(-3i64, i64::MIN)?,
            ),
        )?,
    ))()
        .map(Value::Int)
}
fn expression_186(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >({
            let __looked_for = if true { v.layout } else { 2u32 };
            __looked_for != 0u32 && __looked_for != 0u32
        })
        .map(Value::Bool)
}
fn expression_187(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::floor_divide_float(
        ::lz_schema::expr::arith::divide_float(
            ::lz_schema::expr::arith::sqrt_float(0.0f64)?,
            v.x,
        )?,
        ::lz_schema::expr::arith::negate_float(if true { 1e-5f64 } else { v.y }),
    ))()
        .map(Value::Float)
}
fn expression_188(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(v.p && !v.p || true)
        .map(Value::Bool)
}
fn expression_189(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >((false || true) == (false || !true && v.p))
        .map(Value::Bool)
}
fn expression_190(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
            ({
                let __looked_for = if v.given_mask { v.layout } else { 0u32 };
                __looked_for != 0u32 && __looked_for != 2u32
            }) || v.q,
        )
        .map(Value::Bool)
}
fn expression_191(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::negate_float(
            ::lz_schema::expr::arith::divide_float(
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::add_int(
                        ::lz_schema::expr::arith::modulo_int(0i64, 2i64)?,
                        0i64,
                    )?,
                ),
                ::lz_schema::expr::arith::floor_divide_float(
                    0.0f64,
                    ::lz_schema::expr::arith::widen(
                        if v.given_mask { i64::MIN } else { v.target_sm },
                    ),
                )?,
            )?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_192(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::ceil_divide_int(-3i64, v.target_sm)?
            > ::lz_schema::expr::arith::floor_divide_int(-3i64, 2i64)?,
    ))()
        .map(Value::Bool)
}
fn expression_193(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
            if 0i64 == 128i64 || 0i64 == v.a || 0i64 == 2i64 || v.target_sm == 7i64 {
                (v.q || v.q) == (v.p && !v.q && false)
            } else {
                !(v.layout == v.layout)
            },
        )
        .map(Value::Bool)
}
fn expression_194(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        i64,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::min_int(
            ::lz_schema::expr::arith::add_int(
                ::lz_schema::expr::arith::negate_int(
                    ::lz_schema::expr::arith::multiply_int(v.a, v.target_sm)?,
                )?,
                ::lz_schema::expr::arith::ceil_divide_int(
                    -9223372036854775807i64,
                    ::lz_schema::expr::arith::ceil_divide_int(v.b, -3i64)?,
                )?,
            )?,
            ::lz_schema::expr::arith::add_int(
                -3i64,
                ::lz_schema::expr::arith::floor_divide_int(
                    ::lz_schema::expr::arith::floor_divide_int(
                        9223372036854775807i64,
                        0i64,
                    )?,
                    ::lz_schema::expr::arith::multiply_int(
                        ::lz_schema::expr::arith::floor_divide_int(i64::MIN, 7i64)?,
                        v.b,
                    )?,
                )?,
            )?,
        ),
    ))()
        .map(Value::Int)
}
fn expression_195(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(!(false && !true && false))
        .map(Value::Bool)
}
fn expression_196(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::add_int(
        ::lz_schema::expr::arith::modulo_int(
            v.b,
            ::lz_schema::expr::arith::modulo_int(i64::MIN, 9223372036854775807i64)?,
        )?,
        0i64,
    ))()
        .map(Value::Int)
}
fn expression_197(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::negate_float(
            if (if v.q || !v.q || v.p {
                v.given_mask && !true && v.p
            } else {
                v.given_mask || !v.q && false
            }) {
                1e300f64
            } else {
                ::lz_schema::expr::arith::abs_float(
                    ::lz_schema::expr::arith::divide_float(
                        7.0f64,
                        ::lz_schema::expr::arith::widen(v.b),
                    )?,
                )
            },
        ),
    ))()
        .map(Value::Float)
}
fn expression_198(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        if 2i64 < v.target_sm {
            ::lz_schema::expr::arith::subtract_float(
                0.0f64,
                ::lz_schema::expr::arith::widen(v.target_sm),
            )?
        } else {
            ::lz_schema::expr::arith::sqrt_float(1e-5f64)?
        },
    ))()
        .map(Value::Float)
}
fn expression_199(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<i64, ::lz_schema::expr::arith::EvalError>(128i64)
        .map(Value::Int)
}
fn expression_200(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        (0.0f64 == -9.223372036854776e18f64
            || 0.0f64
                == ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::multiply_int(
                        ::lz_schema::expr::arith::floor_divide_int(v.target_sm, 128i64)?,
                        ::lz_schema::expr::arith::min_int(7i64, v.b),
                    )?,
                ) || 0.0f64 == ::lz_schema::expr::arith::widen(v.target_sm))
            == (v.layout
                == (if (if v.given_mask { true } else { true }) {
                    v.layout
                } else {
                    0u32
                })),
    ))()
        .map(Value::Bool)
}
fn expression_201(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::widen(if v.q { 2i64 } else { v.a })
            > ::lz_schema::expr::arith::sqrt_float(v.y)?,
    ))()
        .map(Value::Bool)
}
fn expression_202(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::floor_divide_int(
        ::lz_schema::expr::arith::ceil_divide_int(
            ::lz_schema::expr::arith::abs_int(1i64)?,
            v.b,
        )?,
        v.a,
    ))()
        .map(Value::Int)
}
fn expression_203(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        if !(if v.p && !false && v.q {
            9223372036854775807i64 != 128i64
        } else {
            v.layout != 2u32 && v.layout != 0u32
        }) {
            ::lz_schema::expr::arith::modulo_float(
                1e-5f64,
                ::lz_schema::expr::arith::floor_divide_float(
                    if false { 1e300f64 } else { 1e300f64 },
                    ::lz_schema::expr::arith::widen(
                        ::lz_schema::expr::arith::floor_divide_int(v.b, 2i64)?,
                    ),
                )?,
            )?
        } else {
            ::lz_schema::expr::arith::modulo_float(
                ::lz_schema::expr::arith::multiply_float(
                    ::lz_schema::expr::arith::sqrt_float(2.0f64)?,
                    ::lz_schema::expr::arith::subtract_float(1e-5f64, 2.0f64)?,
                )?,
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::subtract_int(
                        ::lz_schema::expr::arith::add_int(1i64, 0i64)?,
                        ::lz_schema::expr::arith::negate_int(i64::MIN)?,
                    )?,
                ),
            )?
        },
    ))()
        .map(Value::Float)
}
fn expression_204(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::ceil_divide_int(
        ::lz_schema::expr::arith::subtract_int(9223372036854775807i64, 7i64)?,
        ::lz_schema::expr::arith::ceil_divide_int(i64::MIN, 128i64)?,
    ))()
        .map(Value::Int)
}
fn expression_205(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        if ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::subtract_int(
                ::lz_schema::expr::arith::multiply_int(
                    9223372036854775807i64,
                    i64::MIN,
                )?,
                v.b,
            )?,
        )
            <= ::lz_schema::expr::arith::multiply_float(
                v.x,
                ::lz_schema::expr::arith::widen(v.a),
            )?
            && ::lz_schema::expr::arith::multiply_float(
                v.x,
                ::lz_schema::expr::arith::widen(v.a),
            )?
                < ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::multiply_int(
                        ::lz_schema::expr::arith::multiply_int(i64::MIN, -3i64)?,
                        i64::MIN,
                    )?,
                )
        {
            v.layout != 2u32 && v.layout != 1u32 && 2500.0f64 <= 1e-5f64
        } else {
            {
                let __looked_for = ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::ceil_divide_int(-3i64, 1i64)?,
                );
                __looked_for != v.x
                    && __looked_for
                        != ::lz_schema::expr::arith::modulo_float(
                            0.5f64,
                            -9.223372036854776e18f64,
                        )? && __looked_for != ::lz_schema::expr::arith::widen(v.a)
            }
        },
    ))()
        .map(Value::Bool)
}
fn expression_206(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if !(v.layout != 2u32) || !(!v.p) { v.layout } else { 1u32 })
        .map(Value::Enum)
}
fn expression_207(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::negate_float(0.0f64)
            <= ::lz_schema::expr::arith::widen(::lz_schema::expr::arith::abs_int(7i64)?)
            && ::lz_schema::expr::arith::abs_int(7i64)?
                != (if true { 1i64 } else { 1i64 }),
    ))()
        .map(Value::Bool)
}
fn expression_208(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        i64,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::min_int(
            -9223372036854775807i64,
            ::lz_schema::expr::arith::ceil_divide_int(
                -7i64,
                ::lz_schema::expr::arith::subtract_int(
                    i64::MIN,
                    ::lz_schema::expr::arith::modulo_int(128i64, 9223372036854775807i64)?,
                )?,
            )?,
        ),
    ))()
        .map(Value::Int)
}
fn expression_209(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(v.layout != 1u32 && v.layout != 0u32)
        .map(Value::Bool)
}
fn expression_210(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if v.p && v.given_mask { v.layout } else { 2u32 })
        .map(Value::Enum)
}
fn expression_211(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        v.y
            < ::lz_schema::expr::arith::sqrt_float(
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::add_int(v.a, i64::MIN)?,
                ),
            )?
            && ::lz_schema::expr::arith::sqrt_float(
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::add_int(v.a, i64::MIN)?,
                ),
            )?
                >= ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::abs_int(
                        ::lz_schema::expr::arith::subtract_int(7i64, 128i64)?,
                    )?,
                ),
    ))()
        .map(Value::Bool)
}
fn expression_212(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::add_int(
        v.b,
        ::lz_schema::expr::arith::min_int(
            ::lz_schema::expr::arith::negate_int(-1i64)?,
            ::lz_schema::expr::arith::multiply_int(
                ::lz_schema::expr::arith::ceil_divide_int(v.a, i64::MIN)?,
                if true { v.a } else { 1i64 },
            )?,
        ),
    ))()
        .map(Value::Int)
}
fn expression_213(v: &Variables) -> Result<Value, EvalError> {
    ::lz_schema::expr::arith::multiply_float(
            v.x,
            ::lz_schema::expr::arith::max_float(
                ::lz_schema::expr::arith::max_float(0.0f64, 2500.0f64),
                0.5f64,
            ),
        )
        .map(Value::Float)
}
fn expression_214(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        if (true || v.given_mask) && !true || v.p {
            ::lz_schema::expr::arith::ceil_divide_int(7i64, i64::MIN)? == -2i64
        } else {
            v.q
        },
    ))()
        .map(Value::Bool)
}
fn expression_215(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::modulo_int(
        ::lz_schema::expr::arith::min_int(
            ::lz_schema::expr::arith::add_int(
                ::lz_schema::expr::arith::ceil_divide_int(v.target_sm, 2i64)?,
                if true { 1i64 } else { -3i64 },
            )?,
            ::lz_schema::expr::arith::modulo_int(
                ::lz_schema::expr::arith::modulo_int(v.a, v.target_sm)?,
                ::lz_schema::expr::arith::add_int(1i64, v.target_sm)?,
            )?,
        ),
        ::lz_schema::expr::arith::negate_int(
            if ({
                let __looked_for = ::lz_schema::expr::arith::widen(v.target_sm);
                __looked_for == -9.223372036854776e18f64 || __looked_for == 0.0f64
                    || __looked_for == 0.0f64
            }) {
                1i64
            } else {
                0i64
            },
        )?,
    ))()
        .map(Value::Int)
}
fn expression_216(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        if false && v.given_mask {
            ::lz_schema::expr::arith::multiply_float(v.y, 9.223372036854776e18f64)?
        } else {
            ::lz_schema::expr::arith::modulo_float(
                0.0f64,
                ::lz_schema::expr::arith::widen(v.b),
            )?
        },
    ))()
        .map(Value::Float)
}
fn expression_217(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<bool, ::lz_schema::expr::arith::EvalError>(!(!(!v.p)))
        .map(Value::Bool)
}
fn expression_218(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(v.q || !false || v.given_mask)
        .map(Value::Bool)
}
fn expression_219(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::subtract_int(
        ::lz_schema::expr::arith::modulo_int(
            ::lz_schema::expr::arith::multiply_int(7i64, i64::MIN)?,
            0i64,
        )?,
        ::lz_schema::expr::arith::multiply_int(2i64, i64::MIN)?,
    ))()
        .map(Value::Int)
}
fn expression_220(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::add_int(
        ::lz_schema::expr::arith::ceil_divide_int(-3i64, 2i64)?,
        ::lz_schema::expr::arith::ceil_divide_int(
            ::lz_schema::expr::arith::floor_divide_int(v.a, 7i64)?,
            ::lz_schema::expr::arith::multiply_int(9223372036854775807i64, v.a)?,
        )?,
    ))()
        .map(Value::Int)
}
fn expression_221(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::min_float(
            v.x,
            ::lz_schema::expr::arith::divide_float(v.x, 1.0f64)?,
        )
            == ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::subtract_int(
                    -3i64,
                    ::lz_schema::expr::arith::multiply_int(128i64, 128i64)?,
                )?,
            ),
    ))()
        .map(Value::Bool)
}
fn expression_222(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::subtract_int(v.b, -3i64)?,
        ) < (if v.p { v.x } else { v.x }) && (if v.p { v.x } else { v.x }) < 0.0f64,
    ))()
        .map(Value::Bool)
}
fn expression_223(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::subtract_int(
                ::lz_schema::expr::arith::modulo_int(i64::MIN, v.target_sm)?,
                ::lz_schema::expr::arith::subtract_int(
                    1i64,
                    ::lz_schema::expr::arith::multiply_int(128i64, -3i64)?,
                )?,
            )?,
        )
            < ::lz_schema::expr::arith::sqrt_float(
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::min_int(2i64, i64::MIN),
                ),
            )?,
    ))()
        .map(Value::Bool)
}
fn expression_224(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
            !(128i64 == -3i64
                && (0.0f64 == v.x || 0.0f64 == 2500.0f64 || 0.0f64 == 7.0f64))
                || v.given_mask,
        )
        .map(Value::Bool)
}
fn expression_225(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::sqrt_float(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::multiply_int(
                ::lz_schema::expr::arith::floor_divide_int(-3i64, v.b)?,
                1i64,
            )?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_226(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        i64::MIN
            > ::lz_schema::expr::arith::add_int(
                ::lz_schema::expr::arith::multiply_int(
                    ::lz_schema::expr::arith::floor_divide_int(
                        v.target_sm,
                        9223372036854775807i64,
                    )?,
                    7i64,
                )?,
                if v.q { 2i64 } else { i64::MIN },
            )?,
    ))()
        .map(Value::Bool)
}
fn expression_227(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::subtract_float(
        ::lz_schema::expr::arith::subtract_float(
            if 128i64 > 7i64 {
                if v.given_mask { 2500.0f64 } else { 1e300f64 }
            } else {
                v.y
            },
            ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::max_int(
                    ::lz_schema::expr::arith::max_int(
                        ::lz_schema::expr::arith::ceil_divide_int(-3i64, -3i64)?,
                        v.target_sm,
                    ),
                    -2i64,
                ),
            ),
        )?,
        ::lz_schema::expr::arith::sqrt_float(
            ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::modulo_int(
                    ::lz_schema::expr::arith::add_int(
                        i64::MIN,
                        ::lz_schema::expr::arith::multiply_int(v.target_sm, 0i64)?,
                    )?,
                    ::lz_schema::expr::arith::abs_int(0i64)?,
                )?,
            ),
        )?,
    ))()
        .map(Value::Float)
}
fn expression_228(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::ceil_divide_int(
        ::lz_schema::expr::arith::add_int(2i64, v.target_sm)?,
        if v.q { 1i64 } else { 128i64 },
    ))()
        .map(Value::Int)
}
fn expression_229(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        !({
            let __looked_for = ::lz_schema::expr::arith::negate_float(v.y);
            __looked_for != ::lz_schema::expr::arith::widen(v.a)
                && __looked_for
                    != ::lz_schema::expr::arith::modulo_float(1e300f64, 2500.0f64)?
                && __looked_for != v.x
        }),
    ))()
        .map(Value::Bool)
}
fn expression_230(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::divide_float(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::ceil_divide_int(
                ::lz_schema::expr::arith::modulo_int(
                    ::lz_schema::expr::arith::modulo_int(v.b, v.a)?,
                    9223372036854775807i64,
                )?,
                ::lz_schema::expr::arith::min_int(0i64, 1i64),
            )?,
        ),
        ::lz_schema::expr::arith::multiply_float(
            ::lz_schema::expr::arith::add_float(2500.0f64, 1e-5f64)?,
            ::lz_schema::expr::arith::divide_float(
                0.0f64,
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::ceil_divide_int(v.target_sm, 1i64)?,
                ),
            )?,
        )?,
    ))()
        .map(Value::Float)
}
fn expression_231(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::divide_float(0.0f64, 2500.0f64))().map(Value::Float)
}
fn expression_232(v: &Variables) -> Result<Value, EvalError> {
    ::lz_schema::expr::arith::sqrt_float(v.y).map(Value::Float)
}
fn expression_233(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(v.layout != 2u32 || !v.p && false || !false && false)
        .map(Value::Bool)
}
fn expression_234(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if !v.q { v.layout } else { 0u32 })
        .map(Value::Enum)
}
fn expression_235(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if !(!v.p) { v.layout } else { 0u32 })
        .map(Value::Enum)
}
fn expression_236(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::divide_float(
        ::lz_schema::expr::arith::widen(
            if v.given_mask {
                ::lz_schema::expr::arith::ceil_divide_int(
                    9223372036854775807i64,
                    ::lz_schema::expr::arith::add_int(v.b, 2i64)?,
                )?
            } else {
                ::lz_schema::expr::arith::multiply_int(
                    ::lz_schema::expr::arith::add_int(9223372036854775807i64, 128i64)?,
                    ::lz_schema::expr::arith::multiply_int(v.a, -3i64)?,
                )?
            },
        ),
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::add_int(
                ::lz_schema::expr::arith::multiply_int(v.target_sm, 128i64)?,
                0i64,
            )?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_237(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::negate_int(
        ::lz_schema::expr::arith::ceil_divide_int(1i64, 9223372036854775807i64)?,
    ))()
        .map(Value::Int)
}
fn expression_238(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        if ::lz_schema::expr::arith::min_int(i64::MIN, 7i64)
            < ::lz_schema::expr::arith::subtract_int(
                ::lz_schema::expr::arith::subtract_int(v.b, v.a)?,
                2i64,
            )?
            && ::lz_schema::expr::arith::subtract_int(
                ::lz_schema::expr::arith::subtract_int(v.b, v.a)?,
                2i64,
            )? != ::lz_schema::expr::arith::add_int(v.b, v.target_sm)?
        {
            ::lz_schema::expr::arith::subtract_float(
                ::lz_schema::expr::arith::negate_float(v.x),
                ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::ceil_divide_int(i64::MIN, 0i64)?,
                ),
            )?
        } else {
            ::lz_schema::expr::arith::negate_float(
                ::lz_schema::expr::arith::negate_float(0.5f64),
            )
        },
    ))()
        .map(Value::Float)
}
fn expression_239(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::multiply_int(
                ::lz_schema::expr::arith::modulo_int(
                    -2i64,
                    ::lz_schema::expr::arith::floor_divide_int(v.target_sm, 0i64)?,
                )?,
                ::lz_schema::expr::arith::floor_divide_int(
                    ::lz_schema::expr::arith::ceil_divide_int(v.a, i64::MIN)?,
                    v.a,
                )?,
            )?,
        )
            == (if ({
                let __looked_for = ::lz_schema::expr::arith::widen(
                    if v.q { v.target_sm } else { v.a },
                );
                __looked_for == 7.0f64
                    || __looked_for == (if v.q { 2500.0f64 } else { 1e-5f64 })
                    || __looked_for == 2500.0f64
            }) {
                ::lz_schema::expr::arith::modulo_float(
                    ::lz_schema::expr::arith::floor_divide_float(v.x, 2.0f64)?,
                    ::lz_schema::expr::arith::widen(
                        ::lz_schema::expr::arith::ceil_divide_int(0i64, 0i64)?,
                    ),
                )?
            } else {
                ::lz_schema::expr::arith::modulo_float(
                    ::lz_schema::expr::arith::floor_divide_float(0.5f64, 2.0f64)?,
                    ::lz_schema::expr::arith::widen(
                        ::lz_schema::expr::arith::multiply_int(v.b, v.target_sm)?,
                    ),
                )?
            }),
    ))()
        .map(Value::Bool)
}
fn expression_240(v: &Variables) -> Result<Value, EvalError> {
    ::lz_schema::expr::arith::modulo_int(v.b, if true { v.b } else { i64::MIN })
        .map(Value::Int)
}
fn expression_241(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        i64,
        ::lz_schema::expr::arith::EvalError,
    >(
        if (if v.given_mask {
            0.5f64 == 1e300f64 || 0.5f64 == -9.223372036854776e18f64 || 0.5f64 == -3.0f64
        } else {
            v.q || !true || v.given_mask
        }) {
            ::lz_schema::expr::arith::min_int(
                ::lz_schema::expr::arith::abs_int(1i64)?,
                ::lz_schema::expr::arith::multiply_int(v.a, v.a)?,
            )
        } else {
            ::lz_schema::expr::arith::modulo_int(
                ::lz_schema::expr::arith::subtract_int(i64::MIN, 7i64)?,
                v.target_sm,
            )?
        },
    ))()
        .map(Value::Int)
}
fn expression_242(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<f64, ::lz_schema::expr::arith::EvalError>(1e-5f64)
        .map(Value::Float)
}
fn expression_243(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::negate_float(
            ::lz_schema::expr::arith::multiply_float(1e-5f64, 7.0f64)?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_244(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        (if 1e-5f64 <= 2500.0f64 && 2500.0f64 < 1.0f64 {
            1.0f64 == 9.223372036854776e18f64 || 1.0f64 == -3.0f64 || 1.0f64 == 0.5f64
        } else {
            128i64 < 1i64
        })
            && ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::add_int(v.a, 0i64)?,
            ) != ::lz_schema::expr::arith::subtract_float(v.x, 2.0f64)?,
    ))()
        .map(Value::Bool)
}
fn expression_245(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::divide_float(
        ::lz_schema::expr::arith::abs_float(
            ::lz_schema::expr::arith::floor_divide_float(
                ::lz_schema::expr::arith::modulo_float(v.x, 0.0f64)?,
                ::lz_schema::expr::arith::multiply_float(v.x, 9.223372036854776e18f64)?,
            )?,
        ),
        ::lz_schema::expr::arith::add_float(
            ::lz_schema::expr::arith::divide_float(
                0.0f64,
                if v.q { v.y } else { 1e300f64 },
            )?,
            if (if v.given_mask { v.given_mask } else { true }) {
                0.0f64
            } else {
                ::lz_schema::expr::arith::subtract_float(0.5f64, 2500.0f64)?
            },
        )?,
    ))()
        .map(Value::Float)
}
fn expression_246(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
            true || 128.0f64 == 9.223372036854776e18f64
                || 128.0f64 == -9.223372036854776e18f64 || 128.0f64 == v.y,
        )
        .map(Value::Bool)
}
fn expression_247(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if v.p { v.layout } else { 1u32 })
        .map(Value::Enum)
}
fn expression_248(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::modulo_float(
        ::lz_schema::expr::arith::negate_float(
            ::lz_schema::expr::arith::max_float(
                ::lz_schema::expr::arith::max_float(
                    ::lz_schema::expr::arith::divide_float(1.0f64, -3.0f64)?,
                    2500.0f64,
                ),
                v.x,
            ),
        ),
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::negate_int(
                ::lz_schema::expr::arith::negate_int(
                    ::lz_schema::expr::arith::max_int(
                        ::lz_schema::expr::arith::max_int(7i64, 9223372036854775807i64),
                        v.b,
                    ),
                )?,
            )?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_249(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::multiply_int(
            ::lz_schema::expr::arith::floor_divide_int(2i64, v.target_sm)?,
            128i64,
        )? > ::lz_schema::expr::arith::multiply_int(1i64, 7i64)?,
    ))()
        .map(Value::Bool)
}
fn expression_250(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if false { v.layout } else { 0u32 })
        .map(Value::Enum)
}
fn expression_251(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(
        if ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::floor_divide_int(
                ::lz_schema::expr::arith::multiply_int(0i64, v.target_sm)?,
                ::lz_schema::expr::arith::modulo_int(
                    9223372036854775807i64,
                    v.target_sm,
                )?,
            )?,
        )
            >= (if true || !v.given_mask && v.p {
                ::lz_schema::expr::arith::floor_divide_float(0.0f64, 0.0f64)?
            } else {
                ::lz_schema::expr::arith::negate_float(1e-5f64)
            })
        {
            v.layout
        } else {
            2u32
        },
    ))()
        .map(Value::Enum)
}
fn expression_252(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        i64,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::min_int(
            ::lz_schema::expr::arith::floor_divide_int(
                ::lz_schema::expr::arith::multiply_int(i64::MIN, 128i64)?,
                9223372036854775807i64,
            )?,
            ::lz_schema::expr::arith::multiply_int(1i64, v.a)?,
        ),
    ))()
        .map(Value::Int)
}
fn expression_253(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >((if false { v.layout } else { 0u32 }) == v.layout)
        .map(Value::Bool)
}
fn expression_254(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
            !v.given_mask
                == (2500.0f64 == 1e-5f64 && v.layout != 0u32 || !v.p && v.given_mask),
        )
        .map(Value::Bool)
}
fn expression_255(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::max_float(
            ::lz_schema::expr::arith::max_float(
                ::lz_schema::expr::arith::divide_float(1e300f64, 1e-5f64)?,
                v.x,
            ),
            ::lz_schema::expr::arith::sqrt_float(9.223372036854776e18f64)?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_256(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        i64,
        ::lz_schema::expr::arith::EvalError,
    >(
        if (if 1i64 == i64::MIN { false } else { 0i64 > -3i64 }) {
            ::lz_schema::expr::arith::multiply_int(
                ::lz_schema::expr::arith::ceil_divide_int(v.target_sm, -3i64)?,
                ::lz_schema::expr::arith::modulo_int(2i64, i64::MIN)?,
            )?
        } else {
            ::lz_schema::expr::arith::negate_int(
                ::lz_schema::expr::arith::negate_int(v.target_sm)?,
            )?
        },
    ))()
        .map(Value::Int)
}
fn expression_257(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::negate_float(
            if !v.given_mask {
                ::lz_schema::expr::arith::max_float(
                    ::lz_schema::expr::arith::max_float(
                        ::lz_schema::expr::arith::modulo_float(
                            0.0f64,
                            ::lz_schema::expr::arith::widen(v.a),
                        )?,
                        v.x,
                    ),
                    ::lz_schema::expr::arith::divide_float(
                        7.0f64,
                        9.223372036854776e18f64,
                    )?,
                )
            } else {
                ::lz_schema::expr::arith::sqrt_float(
                    ::lz_schema::expr::arith::widen(
                        ::lz_schema::expr::arith::modulo_int(
                            ::lz_schema::expr::arith::floor_divide_int(1i64, 2i64)?,
                            v.a,
                        )?,
                    ),
                )?
            },
        ),
    ))()
        .map(Value::Float)
}
fn expression_258(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::min_int(7i64, v.target_sm)
            == ::lz_schema::expr::arith::ceil_divide_int(7i64, 9223372036854775807i64)?
            && ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::ceil_divide_int(7i64, 9223372036854775807i64)?,
            )
                != ::lz_schema::expr::arith::subtract_float(
                    0.5f64,
                    9.223372036854776e18f64,
                )?,
    ))()
        .map(Value::Bool)
}
fn expression_259(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if !(v.p || !v.q && v.q) { v.layout } else { 0u32 })
        .map(Value::Enum)
}
fn expression_260(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::ceil_divide_int(
        ::lz_schema::expr::arith::floor_divide_int(
            ::lz_schema::expr::arith::ceil_divide_int(
                if false { 7i64 } else { 9223372036854775807i64 },
                -1i64,
            )?,
            if v.layout != 2u32 && v.layout != 1u32 {
                ::lz_schema::expr::arith::ceil_divide_int(v.b, 9223372036854775807i64)?
            } else {
                ::lz_schema::expr::arith::ceil_divide_int(128i64, 2i64)?
            },
        )?,
        ::lz_schema::expr::arith::max_int(
            ::lz_schema::expr::arith::max_int(
                ::lz_schema::expr::arith::multiply_int(128i64, -128i64)?,
                v.a,
            ),
            ::lz_schema::expr::arith::ceil_divide_int(
                ::lz_schema::expr::arith::modulo_int(v.b, 2i64)?,
                ::lz_schema::expr::arith::ceil_divide_int(128i64, v.target_sm)?,
            )?,
        ),
    ))()
        .map(Value::Int)
}
fn expression_261(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::modulo_float(
        if false { v.y } else { v.x },
        ::lz_schema::expr::arith::multiply_float(1e300f64, -3.0f64)?,
    ))()
        .map(Value::Float)
}
fn expression_262(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if v.layout == v.layout { v.layout } else { 2u32 })
        .map(Value::Enum)
}
fn expression_263(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::add_int(
        ::lz_schema::expr::arith::subtract_int(
            ::lz_schema::expr::arith::add_int(
                v.target_sm,
                ::lz_schema::expr::arith::modulo_int(v.b, v.a)?,
            )?,
            ::lz_schema::expr::arith::negate_int(
                ::lz_schema::expr::arith::subtract_int(
                    v.a,
                    ::lz_schema::expr::arith::floor_divide_int(v.a, v.target_sm)?,
                )?,
            )?,
        )?,
        128i64,
    ))()
        .map(Value::Int)
}
fn expression_264(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if !true { v.layout } else { 2u32 })
        .map(Value::Enum)
}
fn expression_265(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if v.layout != 2u32 { v.layout } else { 2u32 })
        .map(Value::Enum)
}
fn expression_266(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        i64,
        ::lz_schema::expr::arith::EvalError,
    >(
        if ({
            let __looked_for = ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::subtract_int(
                    ::lz_schema::expr::arith::subtract_int(i64::MIN, v.a)?,
                    9223372036854775807i64,
                )?,
            );
            __looked_for != 1e300f64
                && __looked_for
                    != ::lz_schema::expr::arith::widen(
                        ::lz_schema::expr::arith::min_int(
                            ::lz_schema::expr::arith::add_int(
                                128i64,
                                ::lz_schema::expr::arith::modulo_int(
                                    v.a,
                                    9223372036854775807i64,
                                )?,
                            )?,
                            ::lz_schema::expr::arith::subtract_int(
                                2i64,
                                ::lz_schema::expr::arith::modulo_int(
                                    9223372036854775807i64,
                                    v.b,
                                )?,
                            )?,
                        ),
                    ) && __looked_for != 2.0f64
        }) {
            9223372036854775807i64
        } else {
            ::lz_schema::expr::arith::negate_int(
                if false || v.q {
                    ::lz_schema::expr::arith::ceil_divide_int(v.a, 0i64)?
                } else {
                    ::lz_schema::expr::arith::add_int(9223372036854775807i64, 2i64)?
                },
            )?
        },
    ))()
        .map(Value::Int)
}
fn expression_267(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::modulo_int(1i64, 2i64)?
            <= ::lz_schema::expr::arith::modulo_int(
                ::lz_schema::expr::arith::multiply_int(-3i64, 1i64)?,
                128i64,
            )?
            && ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::modulo_int(
                    ::lz_schema::expr::arith::multiply_int(-3i64, 1i64)?,
                    128i64,
                )?,
            ) != ::lz_schema::expr::arith::abs_float(1e-5f64),
    ))()
        .map(Value::Bool)
}
fn expression_268(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::negate_float(
            ::lz_schema::expr::arith::negate_float(0.0f64),
        )
            < ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::ceil_divide_int(
                    if v.given_mask { i64::MIN } else { v.target_sm },
                    ::lz_schema::expr::arith::ceil_divide_int(i64::MIN, 7i64)?,
                )?,
            )
            && ::lz_schema::expr::arith::ceil_divide_int(
                if v.given_mask { i64::MIN } else { v.target_sm },
                ::lz_schema::expr::arith::ceil_divide_int(i64::MIN, 7i64)?,
            )?
                >= ::lz_schema::expr::arith::negate_int(
                    ::lz_schema::expr::arith::subtract_int(128i64, v.target_sm)?,
                )?,
    ))()
        .map(Value::Bool)
}
fn expression_269(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if v.layout != 0u32 { v.layout } else { 2u32 })
        .map(Value::Enum)
}
fn expression_270(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::modulo_int(
        ::lz_schema::expr::arith::subtract_int(9223372036854775807i64, -3i64)?,
        ::lz_schema::expr::arith::floor_divide_int(-3i64, -3i64)?,
    ))()
        .map(Value::Int)
}
fn expression_271(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(
            if (v.q && v.given_mask) == (v.layout != 1u32 && v.layout != 1u32) {
                v.layout
            } else {
                0u32
            },
        )
        .map(Value::Enum)
}
fn expression_272(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(
        if ({
            let __looked_for = if false { v.layout } else { 1u32 };
            __looked_for != 0u32 && __looked_for != 2u32
        })
            && ::lz_schema::expr::arith::modulo_float(v.y, 128.0f64)?
                == ::lz_schema::expr::arith::widen(
                    ::lz_schema::expr::arith::subtract_int(128i64, i64::MIN)?,
                )
        {
            v.layout
        } else {
            0u32
        },
    ))()
        .map(Value::Enum)
}
fn expression_273(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        f64,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::negate_float(
            ::lz_schema::expr::arith::add_float(
                0.5f64,
                ::lz_schema::expr::arith::widen(v.target_sm),
            )?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_274(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        128i64 != 7i64
            && 128i64
                != ::lz_schema::expr::arith::negate_int(
                    ::lz_schema::expr::arith::ceil_divide_int(
                        9223372036854775807i64,
                        9223372036854775807i64,
                    )?,
                )? && 128i64 != 2i64,
    ))()
        .map(Value::Bool)
}
fn expression_275(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::modulo_int(
            ::lz_schema::expr::arith::negate_int(
                ::lz_schema::expr::arith::negate_int(-3i64)?,
            )?,
            ::lz_schema::expr::arith::negate_int(
                ::lz_schema::expr::arith::modulo_int(v.b, 0i64)?,
            )?,
        )?
            > ::lz_schema::expr::arith::multiply_int(
                v.target_sm,
                if ({
                    let __looked_for = ::lz_schema::expr::arith::widen(v.target_sm);
                    __looked_for != 1e300f64 && __looked_for != -9.223372036854776e18f64
                        && __looked_for != 9.223372036854776e18f64
                }) {
                    v.a
                } else {
                    ::lz_schema::expr::arith::negate_int(v.a)?
                },
            )?,
    ))()
        .map(Value::Bool)
}
fn expression_276(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(v.p || v.p || !v.p || false)
        .map(Value::Bool)
}
fn expression_277(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::multiply_int(9223372036854775807i64, v.a)?
            == ::lz_schema::expr::arith::add_int(-3i64, 128i64)?
            && ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::add_int(-3i64, 128i64)?,
            )
                < ::lz_schema::expr::arith::divide_float(
                    ::lz_schema::expr::arith::widen(v.a),
                    ::lz_schema::expr::arith::widen(v.a),
                )? || !(v.y == -3.0f64 && -3.0f64 >= v.x),
    ))()
        .map(Value::Bool)
}
fn expression_278(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        i64,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::max_int(
            ::lz_schema::expr::arith::max_int(
                ::lz_schema::expr::arith::floor_divide_int(
                    ::lz_schema::expr::arith::floor_divide_int(v.target_sm, -2i64)?,
                    ::lz_schema::expr::arith::modulo_int(
                        ::lz_schema::expr::arith::add_int(
                            9223372036854775807i64,
                            ::lz_schema::expr::arith::modulo_int(v.a, 7i64)?,
                        )?,
                        ::lz_schema::expr::arith::modulo_int(
                            9223372036854775807i64,
                            -3i64,
                        )?,
                    )?,
                )?,
                v.b,
            ),
            ::lz_schema::expr::arith::subtract_int(
                ::lz_schema::expr::arith::add_int(
                    1i64,
                    ::lz_schema::expr::arith::negate_int(v.a)?,
                )?,
                ::lz_schema::expr::arith::modulo_int(
                    ::lz_schema::expr::arith::multiply_int(i64::MIN, v.a)?,
                    ::lz_schema::expr::arith::ceil_divide_int(v.target_sm, 1i64)?,
                )?,
            )?,
        ),
    ))()
        .map(Value::Int)
}
fn expression_279(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::negate_int(i64::MIN)? == v.b
            && ::lz_schema::expr::arith::widen(v.b)
                >= ::lz_schema::expr::arith::subtract_float(
                    0.0f64,
                    9.223372036854776e18f64,
                )?,
    ))()
        .map(Value::Bool)
}
fn expression_280(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(
            if v.x < -3.0f64 && -3i64 >= i64::MIN || !false && false {
                v.layout
            } else {
                1u32
            },
        )
        .map(Value::Enum)
}
fn expression_281(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::divide_float(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::modulo_int(v.a, 1i64)?,
        ),
        ::lz_schema::expr::arith::modulo_float(
            if v.layout != 0u32 && v.layout != 1u32 {
                ::lz_schema::expr::arith::floor_divide_float(v.y, -3.0f64)?
            } else {
                ::lz_schema::expr::arith::modulo_float(
                    1e300f64,
                    -9.223372036854776e18f64,
                )?
            },
            ::lz_schema::expr::arith::widen(
                if v.q || v.given_mask {
                    ::lz_schema::expr::arith::floor_divide_int(128i64, i64::MIN)?
                } else {
                    ::lz_schema::expr::arith::floor_divide_int(-3i64, v.a)?
                },
            ),
        )?,
    ))()
        .map(Value::Float)
}
fn expression_282(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if (if true { v.q } else { v.q }) { v.layout } else { 0u32 })
        .map(Value::Enum)
}
fn expression_283(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::divide_float(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::multiply_int(
                ::lz_schema::expr::arith::multiply_int(1i64, 0i64)?,
                2i64,
            )?,
        ),
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::multiply_int(
                if true { i64::MIN } else { i64::MIN },
                -9223372036854775807i64,
            )?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_284(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        ::lz_schema::expr::arith::negate_float(
            ::lz_schema::expr::arith::min_float(
                0.5f64,
                ::lz_schema::expr::arith::divide_float(1e300f64, 1.0f64)?,
            ),
        )
            != ::lz_schema::expr::arith::subtract_float(
                0.5f64,
                ::lz_schema::expr::arith::divide_float(
                    ::lz_schema::expr::arith::divide_float(
                        9.223372036854776e18f64,
                        -9.223372036854776e18f64,
                    )?,
                    1e-5f64,
                )?,
            )?,
    ))()
        .map(Value::Bool)
}
fn expression_285(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        0.0f64
            < ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::multiply_int(128i64, 2i64)?,
            ),
    ))()
        .map(Value::Bool)
}
fn expression_286(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(
        if v.a != ::lz_schema::expr::arith::abs_int(9223372036854775807i64)? {
            v.layout
        } else {
            1u32
        },
    ))()
        .map(Value::Enum)
}
fn expression_287(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::sqrt_float(
        ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::multiply_int(
                ::lz_schema::expr::arith::floor_divide_int(
                    ::lz_schema::expr::arith::add_int(
                        ::lz_schema::expr::arith::floor_divide_int(0i64, v.b)?,
                        -3i64,
                    )?,
                    if v.p { i64::MIN } else { i64::MIN },
                )?,
                ::lz_schema::expr::arith::abs_int(
                    ::lz_schema::expr::arith::floor_divide_int(i64::MIN, -3i64)?,
                )?,
            )?,
        ),
    ))()
        .map(Value::Float)
}
fn expression_288(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >({
        let __looked_for = ::lz_schema::expr::arith::widen(
            ::lz_schema::expr::arith::ceil_divide_int(0i64, -3i64)?,
        );
        __looked_for == 0.0f64 || __looked_for == 0.0f64 || __looked_for == 7.0f64
    }))()
        .map(Value::Bool)
}
fn expression_289(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::add_int(
        v.target_sm,
        ::lz_schema::expr::arith::modulo_int(1i64, 9223372036854775807i64)?,
    ))()
        .map(Value::Int)
}
fn expression_290(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        (v.layout == v.layout)
            == !(::lz_schema::expr::arith::subtract_int(1i64, 1i64)?
                >= (if v.given_mask { 128i64 } else { 1i64 })),
    ))()
        .map(Value::Bool)
}
fn expression_291(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(!v.given_mask || true && v.p)
        .map(Value::Bool)
}
fn expression_292(v: &Variables) -> Result<Value, EvalError> {
    (|| ::lz_schema::expr::arith::multiply_int(
        ::lz_schema::expr::arith::floor_divide_int(
            ::lz_schema::expr::arith::negate_int(v.target_sm)?,
            0i64,
        )?,
        ::lz_schema::expr::arith::subtract_int(
            ::lz_schema::expr::arith::floor_divide_int(i64::MIN, -3i64)?,
            ::lz_schema::expr::arith::modulo_int(v.b, -3i64)?,
        )?,
    ))()
        .map(Value::Int)
}
fn expression_293(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<i64, ::lz_schema::expr::arith::EvalError>(v.b)
        .map(Value::Int)
}
fn expression_294(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(if true || true { v.layout } else { 0u32 })
        .map(Value::Enum)
}
fn expression_295(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        u32,
        ::lz_schema::expr::arith::EvalError,
    >(
        if ({
            let __looked_for = ::lz_schema::expr::arith::widen(
                ::lz_schema::expr::arith::add_int(1i64, v.target_sm)?,
            );
            __looked_for == 1e300f64
                || __looked_for == (if v.p { 0.5f64 } else { 2500.0f64 })
                || __looked_for == v.x
        }) {
            v.layout
        } else {
            0u32
        },
    ))()
        .map(Value::Enum)
}
fn expression_296(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
        false && 1e300f64 < ::lz_schema::expr::arith::widen(7i64)
            && 7i64
                < (if (if false { true } else { false }) {
                    ::lz_schema::expr::arith::add_int(
                        ::lz_schema::expr::arith::multiply_int(
                            v.a,
                            9223372036854775807i64,
                        )?,
                        2i64,
                    )?
                } else {
                    ::lz_schema::expr::arith::subtract_int(9223372036854775807i64, v.b)?
                }),
    ))()
        .map(Value::Bool)
}
fn expression_297(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >((v.q && !v.p || v.q) && 7i64 > 128i64)
        .map(Value::Bool)
}
fn expression_298(v: &Variables) -> Result<Value, EvalError> {
    (|| ::core::result::Result::Ok::<
        i64,
        ::lz_schema::expr::arith::EvalError,
    >(
        if ::lz_schema::expr::arith::ceil_divide_int(2i64, v.target_sm)? >= -7i64 {
            ::lz_schema::expr::arith::abs_int(i64::MIN)?
        } else {
            ::lz_schema::expr::arith::min_int(
                ::lz_schema::expr::arith::modulo_int(2i64, v.target_sm)?,
                ::lz_schema::expr::arith::subtract_int(2i64, 128i64)?,
            )
        },
    ))()
        .map(Value::Int)
}
fn expression_299(v: &Variables) -> Result<Value, EvalError> {
    ::core::result::Result::Ok::<
        bool,
        ::lz_schema::expr::arith::EvalError,
    >(
            !(if 0i64 >= v.a || true && true {
                {
                    let __looked_for = if false { v.layout } else { 2u32 };
                    __looked_for != 1u32 && __looked_for != 2u32
                }
            } else {
                v.layout != 0u32 || 1e-5f64 == 0.0f64
            }),
        )
        .map(Value::Bool)
}
