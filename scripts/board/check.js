// Checks of gad board in a headless Chromium, by hand. None of it is part of the program.
//
//   npm install                          in this folder: puppeteer-core and axe-core
//   gad board RUN ... &
//   node check.js axe URL                faults that axe-core finds: 1280 and 400 pixels, light and dark, some tables open
//   node check.js time URL [N]           milliseconds from navigation to charts drawn, N times, each in a new browser
//   node check.js use URL                keyboard cursor, zoom, filters, pages, theme: prints what the page then says
//   node check.js functions              differences of random texts add up to the texts; prints ticks and figures to look at
//   node check.js picture URL OUT WIDTH HEIGHT light|dark [SELECTOR]
//   node check.js large DIR STEPS METRICS NAME,NAME,...   writes metrics.jsonl of a run that never was, for "time"
//
// CHROMIUM names the browser; without it, /usr/bin/chromium.
"use strict";
const fs = require("fs");
const puppeteer = () => require("puppeteer-core");
const pause = ms => new Promise(r => setTimeout(r, ms));
const launch = () => puppeteer().launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", headless: true, args: ["--no-sandbox", "--disable-gpu"] });

const open = async (browser, url, width, height, scheme, prepare) => {
  const page = await browser.newPage();
  page.on("pageerror", e => console.log("page error:", e.message));
  page.on("console", m => console.log("console:", m.text()));
  if (prepare) await prepare(page);
  await page.setViewport({ width, height });
  if (scheme) await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.goto(url, { waitUntil: "domcontentloaded" });
  await page.waitForFunction("document.documentElement.dataset.drawn", { timeout: 60000 });
  return page;
};
// scrolled passes every chart by the window, so that it is drawn.
const scrolled = async page => {
  const h = await page.evaluate("document.documentElement.scrollHeight");
  for (let y = 0; y < h; y += 400) { await page.evaluate(y => scrollTo(0, y), y); await pause(50); }
};

const commands = {
  async axe(url) {
    const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
    const b = await launch();
    for (const width of [1280, 400]) for (const scheme of ["light", "dark"]) {
      const p = await open(b, url, width, 900, scheme, page => page.setBypassCSP(true)); // to put axe in
      await p.evaluate(() => document.querySelectorAll(".chart details").forEach((d, i) => { if (i % 7 === 0) d.open = true; }));
      await scrolled(p);
      await p.evaluate(axe);
      const r = await p.evaluate(() => axe.run());
      console.log(width, scheme + ":", r.violations.length, "violations,", r.passes.length, "rules passed, not decided:", r.incomplete.map(i => i.id).join() || "none");
      for (const v of r.violations) console.log("  ", v.impact, v.id, v.nodes.length, v.help, "|", v.nodes[0].html.slice(0, 200));
      await p.close();
    }
    await b.close();
  },

  async time(url, n) {
    for (const height of [900, 12000]) {
      const times = [];
      let lines = 0;
      for (let i = 0; i < (Number(n) || 5); i++) {
        const b = await launch();
        const p = await open(b, url, 1280, height);
        times.push(Math.round(await p.evaluate(() => performance.getEntriesByName("charts-drawn")[0].startTime)));
        lines = await p.evaluate(() => document.querySelectorAll(".plot .line").length);
        await b.close();
      }
      console.log("window of 1280 x " + height + ", " + lines + " curves drawn: " + times.join(" ") + " ms");
    }
  },

  async use(url) {
    const b = await launch();
    const p = await open(b, url, 1280, 1400);
    const id = await p.evaluate(() => document.querySelector("#curve-groups .chart:not([hidden])").id);
    const says = () => p.evaluate(id => document.querySelector("#" + id + " .plot").getAttribute("aria-valuetext"), id);
    const text = selector => p.$eval(selector, e => e.textContent);
    await p.focus("#" + id + " .plot");
    for (const k of ["ArrowLeft", "ArrowLeft", "ArrowRight", "PageDown", "Home", "End", "Escape"]) { await p.keyboard.press(k); await pause(80); console.log(k + ":", await says()); }
    const box = await (await p.$("#" + id + " .plot")).boundingBox();
    await p.mouse.move(box.x + 120, box.y + 50); await p.mouse.down(); await p.mouse.move(box.x + 220, box.y + 60, { steps: 5 }); await p.mouse.up();
    await pause(500);
    const range = () => p.evaluate(() => document.getElementById("from").value + " to " + document.getElementById("to").value);
    console.log("dragged: steps", await range());
    await p.mouse.click(box.x + 150, box.y + 50, { clickCount: 2 });
    await pause(500);
    console.log("double-click: steps", await range());
    await p.type("#find", "loss");
    await pause(200);
    console.log("found:", await p.evaluate(() => [...document.querySelectorAll("#curve-groups .chart:not([hidden]) h3")].map(x => x.textContent).join()));
    for (const show of ["above", "same", "up", "all"]) { await p.select("#sample-show", show); console.log("show " + show + ":", await text("#sample-count")); }
    await p.select("#sample-order", "adv");
    console.log("by advantage:", await p.evaluate(() => [...document.querySelectorAll(".answers tbody tr")].slice(0, 4).map(r => r.lastChild.textContent).join(" ")));
    await p.click("#page-after");
    console.log(await text("#page-is"));
    await p.select("#theme", "dark");
    console.log("theme:", await p.evaluate(() => getComputedStyle(document.body).backgroundColor));
    await b.close();
  },

  async functions() {
    const source = fs.readFileSync(__dirname + "/../../apps/board/page/board.js", "utf8");
    const part = (a, b) => source.slice(source.indexOf(a), source.indexOf(b));
    const { difference, ticks, tickText, figure } = new Function(part("const words = t", "const longest =") + part("const finite = x", "// ---- where the data come from") +
      "; return { difference, ticks, tickText, figure };")();
    const pieces = ["a", "b", " ", "  ", ",", "cat", "\u00e9", "\u{1f600}", "\n", "<b>"];
    let seed = 1, wrong = 0;
    const random = n => (seed = seed * 16807 % 2147483647) % n;
    const text = () => Array.from({ length: random(12) }, () => pieces[random(pieces.length)]).join("");
    for (let i = 0; i < 20000; i++) {
      const a = text(), b = text(), d = difference(a, b), but = kind => d.filter(p => p[0] !== kind).map(p => p[1]).join("");
      if (but("ins") !== a || but("del") !== b || a === b && d.some(p => p[0] !== "same")) wrong++;
    }
    console.log("of 20000 differences", wrong, "do not add up");
    for (const [a, b] of [[0, 1], [0.1, 0.13], [1, 917], [1e-6, 3e-6], [-5, 1e7]]) { const list = ticks(a, b, 4); console.log("ticks from " + a + " to " + b + ":", list.map(x => tickText(list, x)).join(" ")); }
    console.log("figures:", [0, 1e-7, 0.00012, 0.05, 12.345, 123.4, 12345, 1.5e6, NaN].map(figure).join(" "));
  },

  async picture(url, out, width, height, scheme, selector) {
    const b = await launch();
    const p = await open(b, url, Number(width), Number(height), scheme);
    await scrolled(p);
    for (let i = 0; i < 3; i++) { await p.evaluate(w => w ? document.querySelector(w).scrollIntoView() : scrollTo(0, 0), selector || ""); await pause(300); }
    await p.screenshot({ path: out });
    await b.close();
  },

  async large(dir, steps, metrics, names) {
    fs.mkdirSync(dir, { recursive: true });
    const list = names.split(",").slice(0, Number(metrics)), file = fs.openSync(dir + "/metrics.jsonl", "w");
    let x = 1, text = "";
    const noise = () => (x = x * 16807 % 2147483647) / 2147483647 - 0.5;
    for (let s = 1; s <= Number(steps); s++) {
      text += JSON.stringify({ step: s, ...Object.fromEntries(list.map((n, i) => [n, (i + 1) * Math.exp(-3 * s / steps) + noise() / 5])), time: new Date(1.77e12 + s * 1000).toISOString() }) + "\n";
      if (text.length > 1e6 || s === Number(steps)) { fs.writeSync(file, text); text = ""; }
    }
    fs.closeSync(file);
  },
};

const [name, ...args] = process.argv.slice(2);
if (!commands[name]) { console.error("usage: node check.js " + Object.keys(commands).join("|") + " ..."); process.exit(2); }
commands[name](...args).catch(e => { console.error(e.message); process.exit(1); });
