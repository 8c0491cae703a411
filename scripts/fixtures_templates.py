#!/usr/bin/env python3
"""Writes what jinja2 makes of chat templates, set up as transformers sets it up.

    python3 scripts/fixtures_templates.py                    testdata/templates/expressions.json: small
                                                             templates that were written here, below;
                                                             thoughts.json: thoughts in prompts and rows
    python3 scripts/fixtures_templates.py fuzz N SEED OUT    N random templates by a grammar
    python3 scripts/fixtures_templates.py cases DIR OUT      every DIR/*.jinja with DIR/row.jsonl or the
                                                             conversation that is written here
    python3 scripts/fixtures_templates.py released OUT DIR.. every template in the folders (*.jinja,
                                                             tokenizer_config.json) x CONVERSATIONS
    python3 scripts/fixtures_templates.py hostile OUT        testdata/templates/hostile.json: 200
                                                             templates that take time, memory or depth

OUT is a file; GAD_TEMPLATES=OUT go test ./internal/jinja -run TestAgainstJinja2 -v reads it. Needs the
packages transformers and jinja2; their versions are in the file.
"""
import copy, datetime, glob, json, os, random, signal, sys, warnings

warnings.simplefilter("ignore")
import jinja2
import transformers
from transformers.utils import chat_template_utils
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "testdata", "templates")

# What the expressions may use.
VARS = {
    "s": "hello World", "empty": "", "jp": "日本語テキスト", "emo": "a😀b", "ws": "  a b\t c \n", "html": "<a href=\"x\">&'q'</a>",
    "n": 7, "z": 0, "neg": -3, "big": 9223372036854775807, "f": 2.5, "g": 1e20, "yes": True, "no": False, "nil": None,
    "l": [3, 1, 2], "ls": ["b", "a", "C", "c"], "ll": [[1, 2], [3], []], "nums": [1.5, 2, True, 0], "mixed": [1, "a", None, [2]],
    "d": {"b": 1, "a": {"x": [1, 2, {"y": "z"}]}, "items": 5}, "e": {}, "el": [],
    "objs": [{"n": "x", "v": 2, "t": True}, {"n": "y", "v": 1, "t": False}, {"n": "X", "v": 2}],
    "tools": [{"type": "function", "function": {"name": "get", "description": "Gets \"it\" <now>", "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["a", "ü"]}, "days": {"type": ["integer", "null"], "default": None}}, "required": ["city"]}}}],
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <b>"}, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "b": [True, None]}}}]}, {"role": "tool", "content": "42"}],
}

EXPRESSIONS = r"""
1 + 2|1 - 2|7 // 2|-7 // 2|7 % 3|-7 % 3|7 % -3|7.5 // 2|-7.5 % 2|2 ** 10|2 ** -1|2 ** 0.5|2 ** 3 ** 2|-2 ** 2|1 / 2|4 / 2|1 / 3
big + 1|big * big|-big - 2|2 ** 64|2 ** 100 % 7|1e16|1e15|123456789012345678.0|1e-5|0.0001|1.0|g|1e300 * 1e10|-0.0|0.1 + 0.2|100 * 1.1|7 // 0.0|1 // 0|1 % 0|1 / 0
true + 1|true == 1|false == 0|1 == 1.0|'1' == 1|none == false|[] == []|[1, 2] == [1, 2]|(1, 2) == [1, 2]|{'a': 1} == {'a': 1.0}|1 < 2 < 3|1 < 3 < 2|1 == 1 != 2|'a' < 'b'|'a' < 1|[1, 2] < [1, 3]|(1,) < (1, 0)|none < 1
1 in [1, 2]|'a' in 'abc'|'' in ''|1 in 'abc'|'b' in d|'z' not in d|none in mixed|1 in none|x in [1]|not 1 in [2]|not x|not not s|1 and 2|0 and 2|0 or ''|'' or 'x'|x or 'y'|nil or 0|yes and no or 3|not yes or yes
'a' ~ 1|'a' ~ none|'a' ~ 1.0 ~ true|1 ~ 2 * 3|1 + 2 ~ 3|'a' ~ x|[1] ~ 'a'|('a' if yes else 'b') + 'c'|'a' if no else 'b' if no else 'c'|('a' if no)|('a' if no) ~ '.'|(1 if yes)|'x' + ('y' if no else '')
-n|+n|- neg|--n|-(n)|-n ** 2|+yes|-yes|-s|-f|n - -1|n-1|n -1|not n
[1, 2][0]|[1][-1]|[5, 6][-2]|[5][1]|[5][-2]|'abc'[0]|'a'[-1]|'abc'[-4]|jp[0]|jp[-1]|emo[1]|jp[1:3]|emo[::-1]|jp[::2]|s[:5]|s[-5:]|s[::-1]|s[5:2]|s[1:-1:2]|l[::-1]|l[1:]|l[:-1]|l[10:]|l[-10:2]|l[::0]|(1, 2, 3)[1:]|range(10)[2:8:2] | list|range(5)[-1]|none[0]|x[0]|d[0]|d['b']|d['zz']|d.b|d.zz|d.a.x[2].y|d['a']['x'][0]|d.items|d['items']|d.items()|l.0|ll.0.1|ll[0][1]|s.foo|s['upper']()|1['a']|n.real|l['append']|l.append(1)|d.update({})|d.pop('b')|d.clear|l.sort()|d.setdefault('q', 1)
[]|[1, 'a', none, true, 1.5]|(1,)|()|(1, 2)|{}|{'a': 1, 'b': [2]}|{1: 2, none: 3, true: 4}|{'a': 1, 'a': 2}|{[1]: 2}|[[1], (2, 3), {'x': ()}]|["it's", 'say "x"', 'a\nb', '\\', '\x01', 'é', '\u200b']|[x]|'a' 'b'|'a' "b" 'c'|'\u00e9\x41\101\n\t\'\"\\|'|'\q'|0x1F|0b101|0o17|1_000|1_0.5|00|1e3|1.5e-3|'é\é'
s.upper()|s.lower()|s.title()|s.capitalize()|s.swapcase()|s.strip()|ws.strip()|ws.lstrip()|ws.rstrip()|'xxaxx'.strip('x')|'xyaxy'.lstrip('xy')|s.split()|ws.split()|'a,b,,c'.split(',')|'a,b,c'.split(',', 1)|'a,b,c'.rsplit(',', 1)|ws.split(none, 1)|ws.rsplit(none, 1)|ws.split(maxsplit=1)|'a,b'.split(sep=',')|'abc'.split('')|'a b c'.split(' ', 0)|s.replace('l', 'L')|s.replace('l', 'L', 1)|'aaa'.replace('', '-')|s.startswith('he')|s.startswith(('x', 'he'))|s.startswith('ell', 1)|s.endswith('d')|s.endswith(('x',))|s.endswith('o', 0, 5)|s.find('o')|s.find('o', 5)|s.rfind('o')|s.find('zz')|s.index('W')|s.index('zz')|s.count('l')|jp.find('語')|jp.index('語')|''.join(ls)|','.join(['a'])|','.join([1])|', '.join('abc')|s.partition(' ')|s.rpartition('o')|s.partition('zz')|s.removeprefix('hello ')|s.removesuffix('x')|'a\nb\r\nc\x0bd'.splitlines()|'a\nb'.splitlines(true)|'7'.zfill(3)|'-7'.zfill(4)|'a'.ljust(3, '.')|'a'.rjust(3)|'a'.center(4, '*')|'ab'.center(5, '*')|'a\tb'.expandtabs(4)|'12'.isdigit()|'²'.isdigit()|'²'.isdecimal()|'½'.isnumeric()|'一'.isnumeric()|'ab'.isalpha()|'a1'.isalnum()|''.isalpha()|' \n'.isspace()|'Ab'.islower()|'AB1'.isupper()|'1'.isupper()|'Ab Cd'.istitle()|'a_1'.isidentifier()|'é'.isascii()|'\n'.isprintable()|'ß'.upper()|'ß'.capitalize()|'ΑΣ'.lower()|'ﬁ'.upper()|'ǆ'.title()|"they're bill's".title()|'ẞ'.casefold()|'İ'.lower()|s.upper|s.encode('utf8')
'{} {}'.format(1, 'a')|'{0}{1}{0}'.format('a', 'b')|'{a}'.format(a=1)|'{a.b}'.format(a={'b': 2})|'{a[b]}'.format(a={'b': 2})|'{0[1]}'.format([5, 6])|'{:>5}|'.format('a')|'{:*^7}'.format('a')|'{:05d}'.format(42)|'{:+}'.format(3)|'{:x} {:X} {:#x} {:b} {:o}'.format(255, 255, 255, 5, 8)|'{:.2f}'.format(2.675)|'{:.3}'.format('abcdef')|'{:,}'.format(1234567)|'{:_}'.format(1234567)|'{:,.1f}'.format(12345.67)|'{:e}'.format(12345.678)|'{:g}'.format(0.00001)|'{:g}'.format(1e10)|'{:%}'.format(0.25)|'{:.0%}'.format(0.5)|'{!r}'.format('a')|'{!s:>4}'.format(1)|'{{}}'.format()|'{}'.format()|'{:>{w}}'.format('a', w=4)|'{:d}'.format('a')|'{}'.format(none)|'{:5}'.format(true)|'{:.3}'.format(1.23456)|'{:.3}'.format(100.0)|'{:.1}'.format(100.0)|'{}'.format(1.0)|'{:08.3f}'.format(-3.14159)|'{:010,}'.format(1234)|'{:=+6}'.format(5)|'{'.format()|'}'.format()|'{a}'.format(1)|'{0.real}'.format(5)|'{0.__class__}'.format(5)
'%s' % 'a'|'%s is %d' % ('x', 3)|'%5s|%-5s|' % ('a', 'b')|'%05d' % 42|'%+d' % 3|'% d' % 3|'%.2f' % 2.5|'%e' % 1234.5|'%g' % 0.0001|'%x %X %o %#x' % (255, 255, 8, 255)|'%c%c' % (65, 'b')|'%r' % 'a'|'%%' % ()|'%d' % 3.9|'%d' % '3'|'%s' % none|'%s %s' % 'a'|'%s' % ('a', 'b')|'%(a)s %(b)d' % {'a': 1, 'b': 2}|'%s' % [1, 2]|'%s' % {'a': 1}|'%.3s' % 'abcdef'|'%*d' % (5, 3)|'%s' % x|'%a' % 'é'|'a' % 1|'%q' % 1|'%'  % 1
'a' * 3|3 * 'a'|'a' * 0|'a' * -1|'a' * 2.0|[1] * 2|(1, 2) * 2|2 * [1]|[1] + [2]|(1,) + (2,)|[1] + (2,)|'a' + 1|1 + 'a'|[1] - [1]|{} + {}|true * 3|none + 1|x + 1|'a' + x|x * 2|x.y|x['y']|x()|x | upper
"""

FILTERS = r"""
s | upper|s | lower|s | title|'a-b (c [d {e <f' | title|s | capitalize|s | length|jp | length|l | length|d | length|range(3) | length|n | length|none | length|x | length|s | count
l | first|l | last|el | first|'abc' | first|jp | last|d | first|d | last|range(3) | last|(l | map('string') | first)|(l | map('string') | last)|x | first|x | last
l | min|l | max|ls | min|ls | max|ls | min(true)|el | min|objs | max(attribute='v')|l | sum|nums | sum|objs | sum(attribute='v')|objs | sum('v', 10)|ll | sum(start=[])|ls | sum|mixed | min
l | sort|l | sort(reverse=true)|ls | sort|ls | sort(case_sensitive=true)|ls | sort(true)|objs | sort(attribute='v') | map(attribute='n') | list|objs | sort(attribute='v,n') | map(attribute='n') | list|objs | sort(attribute='v', reverse=true) | map(attribute='n') | list|mixed | sort|el | sort|'bca' | sort|d | sort|objs | sort(attribute='n', case_sensitive=true) | map(attribute='n') | join
d | dictsort|{'b': 1, 'A': 2, 'c': 0} | dictsort|{'b': 1, 'A': 2} | dictsort(true)|{'b': 1, 'A': 2} | dictsort(by='value')|{'b': 1, 'A': 2} | dictsort(false, 'value', true)|{'b': 1, 1: 2} | dictsort|l | dictsort|{'b': 1} | dictsort(by='x')
l | reverse | list|'abc' | reverse|jp | reverse|ls | reverse | join|d | reverse | list|range(3) | reverse | list|(l | map('string') | reverse | list)|n | reverse|objs | reverse | map(attribute='n') | list|l | reverse
l | join|l | join(', ')|ls | join(d='-')|objs | join('/', attribute='n')|'abc' | join('-')|mixed | join('|')|d | join(',')|x | join('a')|n | join|l | join(1)|[x, none] | join(',')
l | map('string') | list|l | map('string') | join('-')|ls | map('upper') | list|objs | map(attribute='n') | list|objs | map(attribute='t') | list|objs | map(attribute='t', default='no') | list|objs | map('length') | list|ls | map('replace', 'a', 'x') | list|ls | map('default', 'x') | list|ll | map('first') | list|ll | map(attribute=0) | list|none | map('upper') | list|x | map('upper') | list|n | map('upper') | list|ls | map | list|objs | map(attribute='n', foo=1) | list|ls | map('nosuch') | list|objs | map(attribute='v') | map('string') | join|ls | map('indent') | list
l | select | list|nums | select | list|l | select('odd') | list|l | reject('odd') | list|l | select('>', 1) | list|l | select('in', [1, 2]) | list|mixed | select('string') | list|mixed | select('none') | list|mixed | reject('none') | list|objs | selectattr('t') | map(attribute='n') | list|objs | selectattr('v', '==', 2) | map(attribute='n') | list|objs | selectattr('v', 'equalto', 2) | list | length|objs | rejectattr('t') | map(attribute='n') | list|objs | rejectattr('t', 'defined') | map(attribute='n') | list|objs | selectattr('t', 'undefined') | list|objs | selectattr('a.b') | list|objs | selectattr | list|l | select('nosuch') | list|tools | selectattr('function.name', 'eq', 'get') | list | length|none | select | list|(l | select('odd')) | length|(l | select('odd'))[0]|messages | selectattr('role', 'equalto', 'user') | list | first|(messages | selectattr('role', 'equalto', 'user') | list)[-1].content
ls | unique | list|ls | unique(true) | list|l | unique | list|objs | unique(attribute='v') | map(attribute='n') | list|ll | unique | list|[1, true, 1.0] | unique | list|l | batch(2) | list|l | batch(2, 'x') | list|l | batch(0) | list|l | slice(2) | list|l | slice(2, 'x') | list|range(10) | slice(3) | list|l | slice(0) | list|objs | groupby('v')|objs | groupby('v') | map('first') | list|objs | groupby('n') | map(attribute='grouper') | list|objs | groupby('t', default=false) | map(attribute='list') | map('length') | list|objs | groupby('n', case_sensitive=true) | map(attribute=0) | list
d | tojson|tools | tojson|tools | tojson(indent=2)|tools | tojson(indent=4, ensure_ascii=true)|d | tojson(sort_keys=true)|d | tojson(separators=(',', ':'))|d | tojson(true)|d | tojson(false, 1)|d | tojson(indent='--')|d | tojson(indent=0)|e | tojson|el | tojson(indent=2)|'a"\\/\n\x7f\u2028😀é' | tojson|'a\x7f😀é' | tojson(ensure_ascii=true)|1.0 | tojson|1e20 | tojson|none | tojson|true | tojson|(1, 2) | tojson|{1: 2, none: 3, true: 4, 1.5: 5} | tojson|{(1, 2): 3} | tojson|x | tojson|range(3) | tojson|l | map('string') | tojson|html | tojson|{'b': 1, 'a': 2, 'c': {'z': 1, 'y': 2}} | tojson(sort_keys=true, indent=1)|{'b': 1, 1: 2} | tojson(sort_keys=true)|big | tojson|d | tojson(indent=true)|d | tojson(indent=2, separators=(', ', ' : '))|d | tojson(nosuch=1)|'' | tojson|[[]] | tojson(indent=2)|f | tojson | upper
'a' | default('b')|x | default('b')|x | default|'' | default('b')|'' | default('b', true)|none | default('b')|none | default('b', boolean=true)|x | d(1)|x.y | default('b')|d.zz | default('b')|d.zz.y | default(1)|0 | default(5, true)
'42' | int|'42.9' | int|'x' | int|'x' | int(default=5)|'0x1f' | int(base=16)|'1f' | int(0, 16)|' 7 ' | int|'1_000' | int|4.9 | int|-4.9 | int|true | int|none | int|none | int(3)|l | int|'1e3' | int|'inf' | int|'٣' | int|'' | int|x | int|'1.5' | float|'x' | float|'x' | float(1)|3 | float|'1e3' | float|'nan' | float|' inf ' | float|none | float|true | float|'1_0.5' | float|x | float
2.5 | round|3.5 | round|2.675 | round(2)|2.5 | round(0, 'ceil')|2.1 | round(method='ceil')|2.9 | round(method='floor')|1234.567 | round(-2)|5 | round|15 | round(-1)|25 | round(-1)|-2.5 | round|2.345 | round(1, 'floor')|2 | round(1, 'ceil')|2.5 | round(1, 'x')|'a' | round|1e300 | round(2)|0.5 | round | int|-0.4 | round|neg | abs|-2.5 | abs|'a' | abs|true | abs|x | abs
ws | trim|'xax' | trim('x')|5 | trim|s | replace('l', 'L')|s | replace('l', 'L', 1)|s | replace('l', 'L', count=2)|5 | replace(5, 6)|html | replace('<', '[')|html | escape|html | e|html | safe|html | e | e|html | forceescape|html | e | forceescape|html | safe | length|n | escape|x | escape|none | e|s | string|5 | string | length|none | string|[1] | string|html | e | string|x | string|s | list|d | list|range(3) | list|n | list|none | list|jp | list|d.a | items | list|x | items | list|l | items | list|e | items | list
'a\nb\n\nc' | indent|'a\nb\n\nc' | indent(2)|'a\nb\n\nc' | indent(2, true)|'a\nb\n\nc' | indent(2, first=true, blank=true)|'a\nb' | indent('> ')|'a\nb\n' | indent(2)|'' | indent|'' | indent(2, true)|'\n\n' | indent(1, true, true)|5 | indent|x | indent|'%s-%d' | format('a', 1)|'%(a)s' | format(a=1)|'%s' | format(1, a=2)|'%s' | format|'%s %s' | format(1)|'foo bar baz qux' | truncate(9)|'foo bar baz qux' | truncate(9, true)|'foo bar baz qux' | truncate(11)|'foo bar baz qux' | truncate(11, false, '')|'foo bar baz qux' | truncate(9, leeway=0)|'foo bar baz qux' | truncate(2)|s | center(21)|s | wordcount|'a-b c_d é' | wordcount|1000 | filesizeformat|1000000 | filesizeformat|1 | filesizeformat|0 | filesizeformat|1536 | filesizeformat(true)|'a b&c/d' | urlencode|{'a': 'b c', 'd': 1} | urlencode|jp | urlencode|[(1, 2)] | urlencode
d | attr('b')|d | attr('items')|d | attr('zz')|s | attr('upper')|l | attr('append')|namespace(a=1) | attr('a')|x | attr('y')|d | attr('__class__')
(html | safe) + '<'|'<' + (html | safe)|(html | safe) ~ '<'|('<%s>' | safe) % '<'|('<{}>' | safe).format('<')|(html | safe).upper()|(html | safe) | upper|(html | safe)[0]|[html | safe]|(html | safe).replace('a', '<')|('a' | safe) * 2|('<' | safe).join(['<', 'a'])|['<' | safe, '>'] | join|('a' | safe) == 'a'|{'a': 1}['a' | safe]|(html | safe) | tojson|('a b' | safe).split()|('a' | safe) is string|('a' | safe) is escaped|'a' is escaped|('a\nb' | safe) | indent|('%d' | safe) % 3|('a' | safe).ljust(3, '<')|'a' in ('abc' | safe)|(s | safe) | title|(s | safe) | replace('h', '<')|('<' | safe) ~ html|{'k': '<' | safe} | string
[3, 1] | sort | first|-1 | abs|-(1 | abs)|- 1 | abs|not x | default(false)|1 + 2 | string|(1 + 2) | string|1 | string ~ 2|'a' ~ 'b' | upper|l | length + 1|l | length > 2|l | first == 3|not l | length|[1, 2] | length in [2]|s | upper | lower | title|d.a.x | length|d.a.x | last | tojson|d.a['x'] | first
"""

TESTS = r"""
x is defined|s is defined|d.zz is defined|d.zz is not defined|x is undefined|nil is none|x is none|s is none|nil is not none|yes is true|1 is true|yes is false|no is false|0 is false|yes is boolean|1 is boolean|n is integer|yes is integer|f is integer|f is float|n is float|n is number|yes is number|s is number|big is integer
s is string|n is string|nil is string|d is mapping|l is mapping|namespace() is mapping|l is sequence|s is sequence|d is sequence|n is sequence|range(3) is sequence|x is sequence|(l | map('string')) is sequence|d.items() is sequence|l is iterable|s is iterable|n is iterable|x is iterable|nil is iterable|(l | map('string')) is iterable|d.keys() is iterable|s.upper is callable|s is callable|range is callable|x is callable|namespace is callable
3 is odd|3 is even|-3 is odd|4 is even|s is odd|n is divisibleby 7|n is divisibleby(2)|n is divisibleby 0|1 is sameas 1|yes is sameas true|nil is sameas none|1 is sameas true|s is sameas s|l is sameas l|[1] is sameas [1]|'abc' is lower|'ABC' is upper|'Abc' is lower|'1' is upper|1 is lower|1 is in [1, 2]|'a' is in 'abc'|1 is not in [2]|1 is eq 1|1 is equalto 1.0|1 is ne 2|2 is gt 1|2 is greaterthan 3|1 is lt 2|1 is lessthan 0|1 is ge 1|1 is le 0|1 is == 1|'tojson' is filter|'nosuch' is filter|'random' is filter|'odd' is test|'nosuch' is test|1 is nosuch|s is defined and n is integer|s is defined or x|not s is defined|s is not string or yes|l[0] is defined|l[5] is defined|messages[-1].content is string|tools[0].function.parameters.properties.city.enum is iterable|'a' if s is string else 'b'|s is string and s is not mapping|(d.b is defined) == true|1 is defined is defined
"""

TEMPLATES = [
    "{% for i in l %}{{ i }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d | dictsort %}{{ k }};{% endfor %}", "{% for k in d %}{{ k }};{% endfor %}",
    "{% for a, b in ll %}{{ a }}{% endfor %}", "{% for a in [[1, 2], [3, 4]] %}{% set b, c = a %}{{ b }}{{ c }}{% endfor %}", "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %}", "{% for i in l if i > 1 %}{{ i }}{{ loop.index }}{{ loop.length }}{% else %}none{% endfor %}", "{% for i in l if i > 9 %}x{% else %}none{% endfor %}",
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}",
    "{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}", "{% for i in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}", "{% for i in range(5) %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for i in [1, 1, 2, 2, 1] %}{{ loop.changed(i) }} {% endfor %}",
    "{% for i in l | map('string') %}{{ loop.length }}{{ loop.last }}{% endfor %}", "{% for i in l %}{% for j in ls %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}", "{% for i in l %}{% set o = loop %}{% for j in [1, 2] %}{{ o.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for i in [1, [2, [3]], 4] recursive %}{% if i is iterable %}({{ loop(i) }}){% else %}{{ i }}@{{ loop.depth }}{% endif %}{% endfor %}", "{% for i in l %}{{ loop(l) }}{% endfor %}", "{% for i in l %}{{ loop }}{% endfor %}",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% break %}", "{% for i in l %}{% endfor %}{{ i }}", "{% for i in n %}{% endfor %}", "{% for i in none %}{% endfor %}", "{% for i in x %}a{% else %}b{% endfor %}", "{% for c in jp %}{{ c }}.{% endfor %}", "{% for i in l %}{% set loop = 1 %}{% endfor %}", "{% for a, b in l %}{% endfor %}", "{% for i in 1, 2, 3 %}{{ i }}{% endfor %}", "{% for i in (l if yes else []) %}{{ i }}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}", "{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}{{ ns }}", "{% set ns = namespace(l=[]) %}{% set ns.l = ns.l + [1] %}{{ ns.l }}", "{% set ns = namespace(l=[]) %}{% set _ = ns.l.append(1) %}{{ ns.l }}", "{% set ns = namespace(_a=1) %}", "{% set ns = namespace() %}{% set ns._a = 1 %}", "{% set d.x = 1 %}", "{% set ns = namespace(a=1) %}{{ ns['a'] }}{{ ns['b'] is defined }}", "{% set ns = namespace(a=1) %}{% set ns.a, b = 2, 3 %}{{ ns.a }}{{ b }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1, %}{{ a }}", "{% set a = b = 1 %}", "{% set (a, b) = 'xy' %}{{ a }}{{ b }}", "{% set a, b = [1] %}", "{% set a, b = [1, 2, 3] %}", "{% set 1 = 2 %}", "{% set none = 2 %}", "{% set a %}x{{ n }}{% endset %}{{ a }}{{ a is string }}", "{% set a | upper %}x{{ n }}{% endset %}{{ a }}", "{% set a | replace('x', 'y') | upper %}x{{ n }}{% endset %}{{ a }}", "{% set s = s ~ '!' %}{{ s }}", "{% if yes %}{% set q = 1 %}{% endif %}{{ q }}", "{% if no %}{% set q = 1 %}{% endif %}{{ q }}", "{% if no %}{% set s = 1 %}{% endif %}{{ s }}", "{% for i in l %}{% if i == 1 %}{% set s = 'in' %}{% endif %}{{ s }};{% endfor %}{{ s }}", "{% for i in l %}{{ q }}{% set q = i %}{% endfor %}", "{% for i in l %}{% set q = i %}{% for j in [1] %}{{ q }}{% set q = 9 %}{{ q }}{% endfor %}{{ q }};{% endfor %}",
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 3) }}|{{ m(a=5, c=6) }}|{{ m() }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, a=3) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% macro m(a) %}{{ caller() }}{% endmacro %}{% call m(1) %}x{{ n }}{% endcall %}", "{% macro m(a) %}{{ caller(a, 2) }}{% endmacro %}{% call(u, v) m(1) %}{{ u }}{{ v }}{% endcall %}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% macro m(a, caller=none) %}{{ caller }}{% endmacro %}{{ m(1) }}", "{% macro m(caller) %}{{ caller() }}{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(a, a) %}{% endmacro %}",
    "{% macro m() %}{{ s }}{% endmacro %}{% set s = 'late' %}{{ m() }}", "{% macro m() %}{% set s = 'in' %}{{ s }}{% endmacro %}{{ m() }}{{ s }}", "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}", "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}{{ m }}", "{% macro m(x) %}{{ x | upper }}{% endmacro %}{{ m('a') ~ m('b') }}{{ m }}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}", "{{ m() }}{% macro m() %}x{% endmacro %}", "{% set m = 1 %}{% macro m() %}x{% endmacro %}{{ m() }}", "{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}", "{% macro m() %}{{ loop is defined }}{% endmacro %}{% for i in [1] %}{{ m() }}{% endfor %}",
    "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with a, b = (1, 2) %}{{ a }}{{ b }}{% endwith %}", "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}xaa{% endfilter %}", "{% filter indent(2) %}a\nb{% endfilter %}", "{% generation %}g{{ s }}{% set s = 2 %}{% endgeneration %}{{ s }}", "{%- generation -%}  g  {%- endgeneration -%}", "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}x{% endgeneration %}{% endif %}{% endfor %}", "{% for i in l %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
    "{% if no %}a{% elif x %}b{% elif yes %}c{% else %}d{% endif %}", "{% if l and s %}a{% endif %}", "{% if (1, 2) %}a{% endif %}", "{% if %}a{% endif %}", "{% if yes %}a", "{% endif %}", "{% if yes %}a{% endfor %}", "{% nosuch %}", "{% print n, s %}", "{% do l.append(1) %}", "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{{ raise_exception('no') }}", "{% if no %}{{ raise_exception('no') }}{% endif %}ok", "{{ self }}", "{{ x.y.z }}", "{{ x }}|{{ x.__class__ }}|", "{{ s.__class__ }}|{{ s._x }}|{{ d.__len__ }}", "{{ s.__class__.__name__ }}", "{{ ''.__class__() }}", "{{ joiner is defined }}{% set j = joiner('; ') %}{{ j() }}a{{ j() }}b", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}", "{{ dict(a=1, b=2) }}{{ dict([('x', 1)]) }}{{ dict({'z': 1}, y=2) }}{{ dict() }}", "{{ range(3) }}{{ range(1, 3) }}{{ range(5, 0, -2) | list }}{{ range(1, 9, 3) }}", "{{ range(100001) }}", "{{ range(1, 2, 0) }}", "{{ range('a') }}", "{{ d.keys() }}{{ d.values() | list }}{{ d.keys() | list }}", "{{ d.get('b') }}{{ d.get('q') }}{{ d.get('q', 7) }}{{ d.get('a').get('x') }}", "{{ d.copy() == d }}{{ l.copy() }}{{ l.index(1) }}{{ l.count(3) }}", "{{ l.index(9) }}", "{{ 'b' in d.keys() }}{{ 5 in d.values() }}{{ ('b', 1) in d.items() }}", "{{ d.keys() == {'b': 1, 'a': 1, 'items': 2}.keys() }}",
    "  {% if yes %}\n  a\n  {% endif %}\n  b", "a {%- if yes -%} b {%- endif -%} c", "a\n{%- if yes %}\n  b\n{%- endif %}\n", "a\n  {%+ if yes %}\n b\n  {%+ endif +%}\nc", "{{ 1 }}\n{{ 2 }}\n", "  {{ 1 -}}\n  {{- 2 }}  ", "a\n  {# c #}\n  b", "a {#- c -#} b", "a\n{# c\nd #}\nb", "{# {% if %} #}x", "{% raw %}{{ x }}{% endraw %}", "{% raw %}\n {{ x }}\n{% endraw %}\ny", "a  {%- raw -%}  {{ b }}  {%- endraw -%}  c", "  {% raw %}x{% endraw %}\n  y", "a\r\nb\rc{{ 'd\r\ne' }}", "{% if yes -%}\n\n  a\n\n{%- endif %}", "\n\na\n\n", "a{{ ' ' }}\n", "{% set a = 1 %}\n{% set b = 2 %}\n{{ a + b }}\n", "\t{% if yes %}\tx\t{% endif %}\t\n", "x  {% if yes %} y{% endif %}", "{{-1}}", "{{- 1 -}}", "{{ {'a': {'b': 1}}['a'] }}", "{{ {'a': '}}'} }}", "{{ '%}' }}", "{%if yes%}a{%endif%}", "{{s}}", "{ {s} }", "{{ s", "{% if", "{# x", "{{ s }", "{{ (1 }}", "{{ 1) }}", "{{ [1 }}", "{{ 'a }}", "{{ 1 2 }}", "{{ }}", "{{ 1 + }}", "{{ a..b }}", "{{ a.1b }}", "{{ $ }}", "{{ a! }}", "{{ a ? b }}", "{{ a & b }}", "{{ f(a=1, 2) }}", "{{ f(*l, **d) }}", "{{ f(a=1, a=2) }}", "{% for %}{% endfor %}", "{% for i in l %}", "{% set %}", "{% set a %}", "{% macro %}", "{% call x %}{% endcall %}", "{% filter nosuch %}{% endfilter %}", "{{ s | nosuch }}", "{{ s is nosuch }}", "{{ s | }}", "{{ l[1:2, 3] }}", "{{ 'a' if }}", "{{ not }}", "{% if yes: %}a{% endif %}", "{% else %}", "{{ {1, 2} }}", "{{ {'a'} }}", "{{ [1, 2,] }}{{ {'a': 1,} }}{{ (1, 2,) }}", "{{ namespace(a=1).a }}", "{{ dict(**{'a': 1}) }}", "{{ '{}-{}'.format(*l[:2]) }}", "{{ range(*[1, 4]) | list }}", "{{ 'a'.upper(1) }}", "{{ 'a'.nosuch() }}", "{{ n() }}", "{{ none() }}", "{{ s() }}", "{{ é }}", "{% set é = 1 %}{{ é }}", "{{ '日本' }}é", "{{ 1 if yes }}{{ 2 if no }}", "{{ (x if no) is defined }}", "{{ s[1:2][0] }}", "{{ (l | list)[0] }}", "{{ (l or [])[0].real }}", "{{ (s if yes else '').strip().upper() }}", "{{ ('a' ~ 'b').upper() }}", "{{ (s | trim).split(' ') }}", "{{ 'a,b'.split(',')[-1] }}", "{{ 'a'.join }}" if False else "{{ 1.5.real }}",
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endif %}\n{% endfor %}", "{% if messages[0]['role'] == 'system' %}{% set sys = messages[0]['content'] %}{% set rest = messages[1:] %}{% endif %}{{ sys }}{{ rest | length }}", "{%- for m in messages[::-1] %}{{ loop.index0 }}{{ m.role }} {% endfor %}", "{% for t in tools %}{{ t | tojson(indent=4) }}{% endfor %}", "{% for t in tools %}{% for k, v in t.function.parameters.properties | dictsort %}{{ k }}:{{ v.type }}{% if v.enum %}{{ v.enum | join('|') }}{% endif %};{% endfor %}{% endfor %}", "{% macro ty(t) %}{% if t is string %}{{ t }}{% elif t is iterable %}{{ t | join(' or ') }}{% endif %}{% endmacro %}{% for k, v in tools[0].function.parameters.properties.items() %}{{ k }}: {{ ty(v.type) }}{{ ', ' if not loop.last }}{% endfor %}", "{{ messages | map(attribute='role') | join(',') }}", "{{ (messages | last).content }}", "{% set last = messages | selectattr('role', 'equalto', 'user') | list | last %}{{ last.content }}", "{% for m in messages if m.role != 'system' %}{{ m.role }}{% endfor %}", "{{ messages[0] | tojson }}{{ messages[2].tool_calls[0].function.arguments.items() | list }}",
]


# What public bug reports of other programs are about, rebuilt: see doc/LOG.md, 27 November.
TEMPLATES += [
    "{{ \"a\nb 'c' \" }}", "{{ \"say \"yes\" now\" }}",  # a template pasted into another language's text
    "{% set loop_messages = messages | rejectattr('role', 'equalto', 'system') | list %}{{ loop_messages | map(attribute='role') | join(' ') }}",
    "{%- set c = messages[1].content.split('</think>')[-1].lstrip('\\n') %}{{- '' }}{{- c }}", "{%- set c = ('<think>\\na\\n</think>\\n\\nb'.split('</think>') | last).lstrip('\\n') %}{%- set r = ('<think>\\na\\n</think>'.split('</think>') | first).rstrip('\\n') %}{{ (r.split('<think>') | last).lstrip('\\n') }}|{{ c }}",
    "{%- for k in tools[0].function.keys() | reject('in', ['name', 'parameters']) %}{{ k }}={{ tools[0].function[k] | tojson }}{% endfor %}", "{%- for k in d.keys() if k not in ['b'] %}{{ k }};{% endfor %}",
    "{%- if yes %}{% generation %}{{ s }}{% endgeneration %}{% else %}x{% endif %}",
    "{%- for m in messages %}{%- if m.role in ['system', 'user'] %}{{ m.role }}{%- else %}\n    {%- break %}\n{%- endif %}{%- endfor %}",
    "{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}\n{%- for message in messages[::-1] %}\n    {%- set index = (messages|length - 1) - loop.index0 %}\n    {%- if ns.multi_step_tool and message.role == \"user\" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}\n        {%- set ns.multi_step_tool = false %}\n        {%- set ns.last_query_index = index %}\n    {%- endif %}\n{%- endfor %}{{ ns.last_query_index }}",
    "{%- for m in messages %}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{%- endif %}{{ m.role }}{%- endfor %}",
    "{{ tools[0].nosuch | tojson }}", "{{ tools[0].nosuch.name | tojson }}",
    "{%- if messages[1].content[0].type == 'text' %}x{%- else %}{{ raise_exception('content must be a list of parts') }}{%- endif %}",
    "Today: {{ now().strftime('%B') }}",
    "{{- if .System }}{{ .System }}{{ end }}", "{%- if yes and -%}x{%- endif %}", "{%- if ne .Role %}x{% endif %}",
]


def expression_templates():
    for block in (EXPRESSIONS, FILTERS, TESTS):
        for line in block.strip().split("\n"):
            # a bar between two templates has no blank at either side
            part = ""
            depth, quote = 0, ""
            for i, c in enumerate(line):
                if quote:
                    part += c
                    if c == quote and line[i - 1] != "\\":
                        quote = ""
                    continue
                if c in "'\"":
                    quote = c
                elif c in "([{":
                    depth += 1
                elif c in ")]}":
                    depth -= 1
                if c == "|" and not (line[i - 1] == " " and line[i + 1 : i + 2] == " "):
                    yield "{{ " + part + " }}"
                    part = ""
                    continue
                part += c
            yield "{{ " + part + " }}"
    yield from TEMPLATES


class TooLong(Exception):
    pass


def alarm(*_):
    raise TooLong()


def run(template, variables, limit=10):
    """The record of one template on one set of variables."""
    signal.signal(signal.SIGALRM, alarm)
    signal.alarm(limit)
    try:
        compiled = _compile_jinja_template(template)
    except TooLong:
        return {"stage": "load", "error": "too long"}
    except Exception as e:
        return {"stage": "load", "error": f"{type(e).__name__}: {e}"[:200]}
    finally:
        signal.alarm(0)
    signal.alarm(limit)
    try:
        text = compiled.render(**copy.deepcopy(variables))  # a filter may change a list
        text.encode()
        return {"text": text}
    except TooLong:
        return {"stage": "render", "error": "too long"}
    except Exception as e:
        return {"stage": "render", "error": f"{type(e).__name__}: {e}"[:200]}
    finally:
        signal.alarm(0)


def versions():
    return {"jinja2": jinja2.__version__, "transformers": transformers.__version__, "python": sys.version.split()[0]}


def write(path, variables, cases):
    """variables is a list; a case names one by its place."""
    with open(path, "w") as f:
        f.write('{"versions": ' + json.dumps(versions()) + ',\n"vars": [' + ",\n".join(json.dumps(v, ensure_ascii=False) for v in variables) + '],\n"cases": [\n')
        f.write(",\n".join(json.dumps(c, ensure_ascii=False) for c in cases))
        f.write("\n]}\n")
    print(f"{path}: {len(cases)} cases")


def case(name, template, i, variables):
    return {"name": name, "template": template, "vars": i, **run(template, variables)}


# ---------------------------------------------------------------- fuzz

NAMES = list(VARS) + ["undef", "undef2"]


def literal(r):
    return r.choice(["0", "1", "-1", "2", "3", "10", "1.5", "0.5", "'a'", "'b'", "''", "'hello'", "'a,b'", "' x '", "'日本'", "true", "false", "none", "[]", "[1, 2]", "['a', 'b']", "(1, 2)", "{}", "{'a': 1}", "{'b': 'x', 'a': 'y'}", "'%s'", "'{}'", "'%d'"])


METHODS = ["upper()", "lower()", "title()", "strip()", "split()", "split(',')", "split(',', 1)", "rsplit(' ', 1)", "replace('a', 'b')", "replace('l', '', 1)", "startswith('h')", "endswith(('d', 'x'))", "find('o')", "count('l')", "index('l')", "join(ls)", "join(l)", "items()", "keys()", "values()", "get('a')", "get('b', 1)", "get(1)", "format(1)", "format('x', a=2)", "capitalize()", "isdigit()", "islower()", "lstrip('h')", "rstrip()", "partition(' ')", "splitlines()", "zfill(5)", "center(9)", "ljust(4, '.')", "removeprefix('h')", "swapcase()", "copy()", "index(1)", "count(1)", "append(1)", "isalpha()", "casefold()", "istitle()"]

FILTERCALLS = ["upper", "lower", "title", "capitalize", "length", "first", "last", "min", "max", "sum", "sort", "sort(reverse=true)", "sort(attribute='n')", "dictsort", "reverse", "reverse | list", "join", "join(', ')", "join('-', attribute='n')", "map('string') | list", "map('upper') | list", "map(attribute='n') | list", "map(attribute='v') | list", "map('length') | list", "select | list", "reject | list", "select('odd') | list", "select('string') | list", "selectattr('t') | list", "selectattr('v', 'eq', 2) | list", "rejectattr('t') | list", "unique | list", "batch(2) | list", "batch(2, 0) | list", "slice(2) | list", "groupby('v')", "tojson", "tojson(indent=2)", "tojson(sort_keys=true)", "tojson(ensure_ascii=true)", "default('z')", "default('z', true)", "int", "float", "round", "round(1)", "abs", "trim", "replace('a', 'x')", "escape", "safe", "string", "list", "items | list", "indent", "indent(2, true)", "format(1)", "truncate(5)", "center(7)", "wordcount", "attr('b')", "d(1)", "e", "count", "map('first') | list", "map('default', 1) | list", "select('none') | list", "reject('none') | list", "select('>', 1) | list", "filesizeformat", "urlencode", "min(attribute='v')", "max(attribute='v')", "sum(attribute='v')", "list | tojson", "map('int') | list", "map('tojson') | list"]

TESTNAMES = ["defined", "undefined", "none", "true", "false", "boolean", "integer", "float", "number", "string", "mapping", "sequence", "iterable", "callable", "odd", "even", "lower", "upper", "divisibleby 2", "divisibleby(3)", "sameas none", "sameas true", "in [1, 'a']", "in 'hello'", "eq 1", "ne 'a'", "gt 1", "lt 2", "ge 1", "le 'b'", "escaped"]


def expression(r, depth):
    if depth <= 0 or r.random() < 0.15:
        return r.choice(NAMES) if r.random() < 0.65 else literal(r)
    e = lambda: expression(r, depth - 1)
    k = r.randrange(20)
    if k < 3:
        return f"{e()} {r.choice(['+', '-', '*', '/', '//', '%', '~', '~', '+'])} {e()}"
    if k == 3:
        return f"({e()})"
    if k == 4:
        return f"{e()} {r.choice(['==', '!=', '<', '<=', '>', '>=', 'in', 'not in'])} {e()}"
    if k == 5:
        return f"{e()} {r.choice(['and', 'or'])} {e()}"
    if k == 6:
        return f"({e()} if {e()} else {e()})" if r.random() < 0.7 else f"({e()} if {e()})"
    if k == 7:
        return r.choice(["not ", "-", "+"]) + e()
    if k < 10:
        return f"({e()}) | {r.choice(FILTERCALLS)}"
    if k < 12:
        return f"{r.choice(NAMES)} | {r.choice(FILTERCALLS)}"
    if k < 14:
        return f"({e()}).{r.choice(METHODS)}" if r.random() < 0.5 else f"{r.choice(NAMES)}.{r.choice(METHODS)}"
    if k == 14:
        return f"({e()})[{r.choice(['0', '-1', '1', '-2', '5', chr(39) + 'a' + chr(39), chr(39) + 'b' + chr(39), '1:', ':2', '::-1', '-3:', '::2', '1:-1', e()])}]"
    if k == 15:
        return f"{r.choice(NAMES)}.{r.choice(['a', 'b', 'x', 'n', 'items', 'role', 'content', '0', 'real', 'upper'])}"
    if k == 16:
        return f"({e()} is {r.choice(['', '', 'not '])}{r.choice(TESTNAMES)})"
    if k == 17:
        return "[" + ", ".join(e() for _ in range(r.randrange(4))) + "]"
    if k == 18:
        return "{" + ", ".join(f"{literal(r)}: {e()}" for _ in range(r.randrange(3))) + "}"
    return f"{e()} {r.choice(['<', '=='])} {e()} {r.choice(['<=', '!='])} {e()}"


def statement(r, depth):
    if depth <= 0 or r.random() < 0.35:
        return r.choice(["x", " ", "\n", "  ", "ab\n", "\n  ", ""]) + "{{" + r.choice(["", "", "-"]) + " " + expression(r, 2) + " " + r.choice(["", "", "-"]) + "}}" + r.choice(["", "\n", " ", "\n\n"])
    body = lambda: "".join(statement(r, depth - 1) for _ in range(r.randrange(1, 3)))
    tag = lambda t: r.choice(["{% ", "{% ", "{%- ", "{%+ "]) + t + r.choice([" %}", " %}", " -%}", " +%}"]) + r.choice(["", "\n", " "])
    name = r.choice(["a", "b", "q", "s", "l", "n"])
    k = r.randrange(12)
    if k < 2:
        return tag("if " + expression(r, 2)) + body() + (tag("elif " + expression(r, 1)) + body() if r.random() < 0.3 else "") + (tag("else") + body() if r.random() < 0.4 else "") + tag("endif")
    if k < 4:
        over = r.choice(["l", "ls", "objs", "messages", "range(3)", "d", "'abc'", "d.items()", "ll", expression(r, 1)])
        extra = r.choice(["", "", "", f" if {expression(r, 1)}"])
        inside = body() + r.choice(["", "{{ loop.index }}", "{{ loop.last }}", "{{ loop.length }}", "{% if loop.index > 1 %}{% break %}{% endif %}", "{% if loop.first %}{% continue %}{% endif %}", "{{ loop.previtem }}", "{{ loop.changed(loop.first) }}"]) + r.choice(["", body()])
        return tag(f"for {r.choice([name, name, name, 'k, v'])} in {over}{extra}") + inside + (tag("else") + body() if r.random() < 0.2 else "") + tag("endfor")
    if k < 6:
        return tag(f"set {name} = {expression(r, 2)}")
    if k == 6:
        return tag(f"set {name}" + r.choice(["", " | upper", " | trim"])) + body() + tag("endset")
    if k == 7:
        return tag(f"macro m{name}(p, q={expression(r, 1)})") + body() + "{{ p }}{{ q }}" + tag("endmacro") + f"{{{{ m{name}({expression(r, 1)}) }}}}"
    if k == 8:
        return tag(f"with {name} = {expression(r, 1)}") + body() + tag("endwith")
    if k == 9:
        return tag("filter " + r.choice(["upper", "trim", "replace('a', 'b')", "indent(2)"])) + body() + tag("endfilter")
    if k == 10:
        return f"{{% set ns = namespace(v={expression(r, 1)}) %}}" + f"{{% for i in [1, 2] %}}{{% set ns.v = {r.choice(['i', 'ns.v', expression(r, 1)])} %}}{{% endfor %}}" + "{{ ns.v }}"
    return r.choice(["{# c #}", "{#- c -#}\n", "{% raw %}{{ x }}{% endraw %}", "{% generation %}" + body() + "{% endgeneration %}", f"{{% macro w() %}}<{{{{ caller() }}}}>{{% endmacro %}}{{% call w() %}}{body()}{{% endcall %}}"])


def fuzz(n, seed, out):
    r = random.Random(seed)
    cases = []
    for i in range(n):
        t = "{{ " + expression(r, r.choice([1, 2, 2, 3])) + " }}" if i % 3 else "".join(statement(r, 3) for _ in range(r.randrange(1, 4)))
        c = case(f"fuzz {i}", t, 0, VARS)
        if "text" in c and (" at 0x" in c["text"] or len(c["text"]) > 20000):
            continue  # an address in memory is another each time
        cases.append(c)
    write(out, [VARS], cases)


# ---------------------------------------------------------------- conversations

SCHEMA = {"type": "function", "function": {"name": "get_weather", "description": "Says the \"weather\" <now> & later.\nSecond line.", "parameters": {"type": "object", "properties": {"place": {"type": "object", "description": "Where", "properties": {"city": {"type": "string", "description": "The city"}, "country": {"type": ["string", "null"], "enum": ["de", "fr", None]}}, "required": ["city"]}, "days": {"type": "array", "items": {"type": "integer", "minimum": 0}, "description": "Which days"}, "unit": {"type": "string", "enum": ["c", "f"], "default": "c"}, "exact": {"type": "boolean"}, "any": {"anyOf": [{"type": "number"}, {"type": "string"}]}}, "required": ["place", "unit"]}, "return": {"type": "string", "description": "A text"}}}
PLAIN = {"type": "function", "function": {"name": "now", "description": "Says the time", "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, i="call12345"):
    return {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}}


SCRIPTS = ["Grüße, Ωμέγα", "Привет, мир", "日本語の文章です。", "中文也可以", "한국어 문장", "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "สวัสดีชาวโลก", "ქართული ენა 😀👩‍👩‍👧"]
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
CALL = {"role": "assistant", "content": "", "tool_calls": [call("get_weather", {"place": {"city": "Paris", "country": None}, "days": [0, 1], "unit": "c", "exact": True, "any": 1.5})]}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": "{\"sky\": \"clear\", \"t\": 21.5}"}
TWO = {"role": "assistant", "content": "I ask.", "tool_calls": [call("get_weather", {"place": {"city": "Bonn"}, "unit": "c"}, "call11111"), call("now", {}, "call22222")]}
RESULTS = [{"role": "tool", "name": "get_weather", "tool_call_id": "call11111", "content": "rain"}, {"role": "tool", "name": "now", "tool_call_id": "call22222", "content": "12:00"}]

# Each: messages, and the other variables of the template.
CONVERSATIONS = [
    ("one turn", ASK, {}),
    ("whole", ASK + [{"role": "assistant", "content": "Clear, 21 degrees."}], {"add_generation_prompt": False}),
    ("system", [{"role": "system", "content": "  Be brief.  "}] + ASK, {}),
    ("six turns", [{"role": "system", "content": "Be brief."}] + [m for i in range(3) for m in ({"role": "user", "content": f"Question {i}?"}, {"role": "assistant", "content": f"Answer {i}."})] + ASK, {}),
    ("tools", [{"role": "system", "content": "Use tools."}] + ASK, {"tools": [SCHEMA, PLAIN]}),
    ("tools, no system", ASK, {"tools": [SCHEMA]}),
    ("call", ASK + [CALL], {"tools": [SCHEMA, PLAIN], "add_generation_prompt": False}),
    ("result", ASK + [CALL, RESULT], {"tools": [SCHEMA, PLAIN]}),
    ("answered", ASK + [CALL, RESULT, {"role": "assistant", "content": "Clear."}, {"role": "user", "content": "And in Bonn?"}], {"tools": [SCHEMA, PLAIN]}),
    ("two calls", ASK + [TWO] + RESULTS, {"tools": [SCHEMA, PLAIN]}),
    ("arguments as text", ASK + [{"role": "assistant", "content": "", "tool_calls": [call("now", "{\"zone\": \"utc\"}")]}, RESULT], {"tools": [PLAIN]}),
    ("thought", ASK + [{"role": "assistant", "reasoning_content": "The user wants weather.\nSo I say it.", "thinking": "The user wants weather.\nSo I say it.", "content": "Clear."}], {"add_generation_prompt": False}),
    ("thoughts over turns", [m for i in range(2) for m in ({"role": "user", "content": f"Q{i}"}, {"role": "assistant", "reasoning_content": f"thought {i}", "thinking": f"thought {i}", "content": f"A{i}"})] + [{"role": "user", "content": "Q"}], {}),
    ("thought and call", ASK + [{**CALL, "reasoning_content": "I need a tool.", "thinking": "I need a tool."}, RESULT], {"tools": [SCHEMA]}),
    ("thought in the text", [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nA"}, {"role": "user", "content": "R"}], {}),
    ("thinking off", ASK, {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"}),
    ("thinking on", [{"role": "system", "content": "S"}] + ASK, {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    ("empty texts", [{"role": "system", "content": ""}, {"role": "user", "content": ""}, {"role": "assistant", "content": ""}, {"role": "user", "content": " \n "}], {}),
    ("long", [{"role": "user", "content": "word " * 4000}, {"role": "assistant", "content": "line\n" * 2000}, {"role": "user", "content": "<|im_start|>{{ x }}{% if %}\r\n\t<b>&amp;'\""}], {}),
    ("ten scripts", [{"role": "system", "content": SCRIPTS[0]}] + [{"role": "user" if i % 2 == 0 else "assistant", "content": s} for i, s in enumerate(SCRIPTS[1:])], {"tools": None}),
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 27, 9, 5, 3)


def conversations():
    out = []
    for name, messages, more in CONVERSATIONS:
        v = {"messages": chat_template_utils._alias_reasoning_fields(messages), "tools": None, "documents": None, "add_generation_prompt": True}
        v.update(TOKENS)
        v.update(more)
        out.append(v)
    return out


def templates_of(dirs):
    found = {}
    for d in dirs:
        for path in sorted(glob.glob(os.path.join(d, "**", "*.jinja"), recursive=True)):
            found[os.path.basename(path)] = open(path, newline="").read()
        for path in sorted(glob.glob(os.path.join(d, "**", "tokenizer_config.json"), recursive=True)):
            t = json.load(open(path)).get("chat_template")
            for t in t if isinstance(t, list) else [{"name": "", "template": t}]:
                if t["template"]:
                    found[path + t["name"]] = t["template"]
    unique = {}
    for name, t in found.items():
        unique.setdefault(t, name)
    return {name: t for t, name in unique.items()}


def released(out, dirs):
    chat_template_utils.datetime = Clock
    variables = conversations()
    cases = []
    templates = templates_of(dirs)
    for name, t in sorted(templates.items()):
        for i, (what, _, _) in enumerate(CONVERSATIONS):
            cases.append(case(f"{name}, {what}", t, i, variables[i]))
    print(len(templates), "templates")
    write(out, variables, cases)


def folder_cases(folder, out):
    chat_template_utils.datetime = Clock
    rows = {}
    for name in ("row.jsonl", "row-tools.jsonl"):
        path = os.path.join(folder, "..", name) if not os.path.exists(os.path.join(folder, name)) else os.path.join(folder, name)
        if os.path.exists(path):
            rows[name] = json.loads(open(path).readline())
    variables = conversations()[:9] + [VARS]
    records = []
    for path in sorted(glob.glob(os.path.join(folder, "*.jinja"))):
        t = open(path, newline="").read()
        for i, v in enumerate(variables):
            records.append(case(f"{os.path.basename(path)} {i}", t, i, v))
    write(out, variables, records)


# ---------------------------------------------------------------- thoughts

# How an assistant's turns are written, by most templates of models that think: a thought from its key
# or from the text, kept behind the last question alone.
TURNS = """{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
{%- if m.role != 'assistant' %}
    {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- else %}
    {%- set thought = m.reasoning_content or '' %}{%- set text = m.content %}
    {%- if not thought and '</think>' in text %}
        {%- set thought = text.split('</think>')[0].split('<think>')[-1] %}
        {%- set text = text.split('</think>')[-1] %}
    {%- endif %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if loop.index0 > ns.last and (loop.last or thought) %}{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}{%- endif %}
    {{- text.lstrip('\\n') + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}""".replace("\\\\", "\\")
OPEN, CLOSED = "{{- '<think>\\n' }}", "{{- '<think>\\n\\n</think>\\n\\n' }}"
KINDS = {
    "opens": TURNS + OPEN + "{%- endif %}",
    "closes": TURNS + CLOSED + "{%- endif %}",
    "closes by a variable": TURNS + "{%- if enable_thinking is defined and enable_thinking is false %}" + CLOSED + "{%- endif %}{%- endif %}",
    "opens, closes by a variable": TURNS + "{%- if enable_thinking is defined and enable_thinking is false %}" + CLOSED + "{%- else %}" + OPEN + "{%- endif %}{%- endif %}",
    "closes, opens by a variable": TURNS + "{%- if enable_thinking is defined and enable_thinking is true %}" + OPEN + "{%- else %}" + CLOSED + "{%- endif %}{%- endif %}",
    "opens, forgets": "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content.split('</think>')[-1] + '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}" + OPEN + "{%- endif %}",
    "none": "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}",
}
ROWS = {
    "key": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4", "reasoning_content": "two and two"}],
    "text": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "<think>\ntwo and two\n</think>\n\n4"}],
    "none": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}],
    "over turns": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2", "reasoning_content": "one"}, {"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4", "reasoning_content": "two and two"}],
    "closing tag alone": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "two and two\n</think>\n\n4"}],
}


def thoughts(path):
    cases = []
    for kind, template in KINDS.items():
        for value in (None, False, True):
            if value is not None and "variable" not in kind:
                continue
            more = {} if value is None else {"enable_thinking": value}
            for row, messages in ROWS.items():
                prompt = render_jinja_template([messages[:-1]], chat_template=template, add_generation_prompt=True, **more)[0][0]
                whole = render_jinja_template([messages], chat_template=template, **more)[0][0]
                cases.append({"kind": kind, "variables": json.dumps(more) if more else "", "row": row, "messages": messages, "prompt": prompt, "whole": whole})
    with open(path, "w") as f:
        json.dump({"versions": versions(), "kinds": KINDS, "cases": cases}, f, indent=1, ensure_ascii=False)
        f.write("\n")
    print(path, len(cases))


# ---------------------------------------------------------------- hostile


def hostile(out):
    """Templates that take time, memory or depth: two hundred, of shapes below with sizes and nestings."""
    grow = ["ns.s + ns.s", "ns.s ~ ns.s", "ns.s * 2", "ns.s.replace('a', 'aa')", "ns.s | replace('a', 'aaa')", "ns.s.join(ns.s | list)", "ns.s | list | join(ns.s)", "(ns.s, ns.s) | join", "'%s%s' % (ns.s, ns.s)", "'{0}{0}'.format(ns.s)", "ns.s | indent(4096, true)", "ns.s.center(ns.s | length * 2)", "ns.s.ljust(ns.s | length * 3)", "ns.s.zfill(ns.s | length * 2)", "ns.s | center(ns.s | length * 2)", "[ns.s, ns.s] | join", "ns.s | tojson", "ns.s | escape ~ '&&&&'", "(ns.s ~ '&') | e | string", "ns.s | urlencode ~ '%%'", "ns.s.expandtabs(1000) ~ '\t'", "ns.s[::-1] + ns.s", "ns.s | reverse ~ ns.s", "ns.s | upper ~ ns.s", "ns.s.format() ~ ns.s"]
    lists = ["ns.l + ns.l", "[ns.l, ns.l]", "ns.l * 2", "(ns.l, ns.l)", "{'a': ns.l, 'b': ns.l}", "[ns.l]", "ns.l | list + ns.l | list", "ns.l | batch(1) | list", "ns.l | slice(100) | list", "ns.l | map('string') | list + ns.l | list", "namespace(l=ns.l)", "dict(a=ns.l)", "[ns.l] * 50"]
    use = ["ns.l", "ns.l | tojson", "ns.l == ns.l", "ns.l | string | length", "ns.l in [ns.l]", "ns.l | sort", "ns.l | unique | list", "ns.l | join", "ns.l | length", "ns.l < ns.l"]
    bodies = []
    for g in grow:
        for start in ("'a' * 16", "'<&a' * 40"):
            bodies.append("{% set ns = namespace(s=" + start + ") %}{% for i in range(90000) %}{% set ns.s = " + g + " %}{% endfor %}")
    for i, g in enumerate(lists):
        for u in use[i % 2 :: 2]:
            bodies.append("{% set ns = namespace(l=['a']) %}{% for i in range(300) %}{% set ns.l = " + g + " %}{% endfor %}{{ " + u + " }}")
    ints = ["ns.n * ns.n", "ns.n ** 2", "ns.n ** ns.n", "2 ** (ns.n * 9)", "ns.n * 10 ** 4000", "-(ns.n ** 3)"]
    for g in ints:
        bodies.append("{% set ns = namespace(n=7) %}{% for i in range(90000) %}{% set ns.n = " + g + " %}{% endfor %}{{ ns.n }}")
    loops = ["{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "{% for i in range(100000) %}{% for j in range(100000) if false %}{% endfor %}{% endfor %}", "{% for i in range(100000) %}{{ range(100000) | list | length }}{% endfor %}", "{% for i in range(100000) %}{{ range(100000) | sum }}{% endfor %}", "{% for i in range(100000) %}{{ range(100000) | select('odd') | list | length }}{% endfor %}", "{% for i in range(100000) %}{{ 99999 in range(100000) | list }}{% endfor %}", "{% for i in range(100000) %}{{ range(100000) | sort(reverse=true) | first }}{% endfor %}", "{% for i in range(100000) %}{{ range(100000) | map('string') | join | length }}{% endfor %}", "{% for i in range(100000) %}{{ range(100000) | groupby(0) }}{% endfor %}", "{% for i in range(100000) %}{{ range(100000) | unique | list | length }}{% endfor %}", "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(0) }}", "{% macro f(n) %}{% if n < 90 %}{{ f(n + 1) }}{{ f(n + 1) }}{% endif %}{% endmacro %}{{ f(0) }}", "{% macro f(n) %}{{ n * 2 }}{% endmacro %}{% for i in range(100000) %}{% for j in range(100000) %}{{ f(i) }}{% endfor %}{% endfor %}", "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}" + "{% call f() %}" * 40 + "x" + "{% endcall %}" * 40, "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}", "{% for m in messages recursive %}{{ loop(messages) }}{{ loop(messages) }}{% endfor %}", "{% macro f(g) %}{{ g(g) }}{% endmacro %}{{ f(f) }}", "{% for i in range(100000) %}{{ i }}{{ 'x' * 1000 }}{% endfor %}", "{% set x %}{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}{% endset %}", "{% filter upper %}{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}{% endfilter %}", "{{ 'a' * 99999999999 }}", "{{ [0] * 99999999999 }}", "{{ '%99999999999d' % 1 }}", "{{ '%*d' % (99999999999, 1) }}", "{{ '%.99999999999f' % 1.0 }}", "{{ '{:99999999999}'.format(1) }}", "{{ '{:.99999999999f}'.format(1.0) }}", "{{ 'a'.center(99999999999) }}", "{{ 'a' | indent(99999999999) }}", "{{ {} | tojson(indent=99999999999) }}", "{{ 'a'.zfill(99999999999) }}", "{{ '\t'.expandtabs(99999999999) }}", "{{ [1] | batch(99999999999, 0) | list }}", "{{ [1] | slice(99999999999) | list | length }}", "{{ 10 ** 99999999999 }}", "{{ 9 ** 9 ** 9 ** 9 }}", "{{ 1e308 * 10 ** 400 }}", "{{ range(99999999999) }}", "{{ range(0, 99999999999, 1000) | list }}", "{{ (" * 400 + "1" + ") }}" * 1, "{{ " + "not " * 450 + "x }}", "{{ " + "[" * 450 + "]" * 450 + " }}", "{{ " + "-" * 450 + "1 }}", "{{ 1" + " + 1" * 900 + " }}", "{% if 1 %}" * 300 + "{% endif %}" * 300, "{{ 'a'" + ".strip()" * 300 + " }}", "{{ x" + ".y" * 300 + " }}", "{% set ns = namespace(s='a') %}{% for i in range(9) %}{% for j in range(99999) %}{% set ns.s = ns.s ~ 'a' %}{% endfor %}{% endfor %}"]
    bodies += loops
    i = 0
    while len(bodies) < 200:
        # the same in macros, blocks and loops of other sizes
        bodies.append("{% macro deep(n) %}" + bodies[i * 3 % 120] + "{% endmacro %}{% for i in range(50) %}{{ deep(i) }}{% endfor %}")
        i += 1
    variables = conversations()[:1]
    with open(out, "w") as f:
        json.dump({"versions": versions(), "vars": variables, "cases": [{"name": f"hostile {i}", "template": b, "vars": 0} for i, b in enumerate(bodies[:200])]}, f, indent=0)
    print(out, len(bodies[:200]))


def main():
    if len(sys.argv) == 1:
        os.makedirs(ROOT, exist_ok=True)
        seen, cases = set(), []
        for t in expression_templates():
            if t in seen:
                continue
            seen.add(t)
            c = case("", t, 0, VARS)
            del c["name"]
            if " at 0x" in c.get("text", ""):
                c = {"template": t, "vars": 0, "stage": "render", "error": "an address in memory"}
            cases.append(c)
        write(os.path.join(ROOT, "expressions.json"), [VARS], cases)
        thoughts(os.path.join(ROOT, "thoughts.json"))
    elif sys.argv[1] == "fuzz":
        fuzz(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    elif sys.argv[1] == "cases":
        folder_cases(sys.argv[2], sys.argv[3])
    elif sys.argv[1] == "released":
        released(sys.argv[2], sys.argv[3:])
    elif sys.argv[1] == "hostile":
        hostile(sys.argv[2])


if __name__ == "__main__":
    main()
