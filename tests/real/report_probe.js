/* Appended to a copy of a report without its policy, in a frame: looks at the page and tells the frame
 * what it found, "ok" when nothing is wrong. */
addEventListener(
    "load",
    () => setTimeout(() => {
      const wrong = [], all = (s, of = document) => [...of.querySelectorAll(s)],
            note = (ok, what) => ok || wrong.push(what);
      const blank = (c) => {
        const copy = Object.assign(document.createElement("canvas"), {width: c.width, height: c.height});
        const context = copy.getContext("2d", {willReadFrequently: true});
        context.drawImage(c, 0, 0);
        const p = new Uint32Array(context.getImageData(0, 0, c.width, c.height).data.buffer);
        return new Set(p).size < 4;
      };
      const charts = () => all("canvas");
      const checkCharts = (when) =>
          charts().forEach((c, i) => note(!blank(c), "chart " + i + " is blank " + when));
      note(failures.length === 0, failures.join("; "));
      note(performance.getEntriesByType("resource").length === 0, "something was requested");
      note(charts().length >= 6, "only " + charts().length + " charts");
      checkCharts("at first");
      charts().forEach(
          (c) => note(
              (c.getAttribute("aria-label") || "").length > 20 &&
                  c.closest("figure").querySelector("details table"),
              "a chart without words or numbers"));
      all("th").forEach((h) => note(h.getAttribute("scope"), "a heading cell without scope"));
      all("section").forEach(
          (s) => note(
              document.getElementById(s.getAttribute("aria-labelledby")), "a section without a heading"));
      note(
          all("h1").length === 1 && all("main").length === 1 && all("nav a").length === all("section").length,
          "landmarks");
      note(!all("img").length && window.alerted === undefined, "a name became markup");
      /* Only tables in their own scrollers are wider than the window. */
      const over = document.documentElement.scrollWidth - document.documentElement.clientWidth;
      note(over <= 0, over + " px over the edge");
      all("details").forEach((d) => {
        d.open = true;
      });
      const overOpen = document.documentElement.scrollWidth - document.documentElement.clientWidth;
      note(overOpen <= 0, overOpen + " px over the edge with everything open");
      /* Sorting, by what a keyboard can press. */
      const scroller = document.querySelector("#candidates .scroll"),
            rows = () => all("tbody tr", scroller).map((r) => r.textContent);
      const before = rows(), button = all("thead button", scroller)[1];
      button.focus();
      note(document.activeElement === button, "a heading takes no focus");
      button.click();
      note(button.closest("th").getAttribute("aria-sort") === "ascending", "not marked as sorted");
      const up = rows();
      button.click();
      note(
          rows().join() === [...up].reverse().join() && [...up].sort().join() === [...before].sort().join(),
          "not sorted");
      /* A candidate less, and again. */
      const keys = () => all(".key")[0].children.length, n = keys(),
            box = all("fieldset input").find((b) => b.checked);
      box.click();
      note(keys() === n - 1, "a candidate stays in the charts");
      checkCharts("with a candidate less");
      box.click();
      /* Paper. */
      dispatchEvent(new Event("beforeprint"));
      note(getComputedStyle(document.body).backgroundColor === "rgb(255, 255, 255)", "paper is not white");
      checkCharts("on paper");
      dispatchEvent(new Event("afterprint"));
      const background = getComputedStyle(document.body).backgroundColor;
      parent.postMessage(
          JSON.stringify({ok: !wrong.length, wrong, charts: charts().length, width: innerWidth, background}),
          "*");
    }, 200));
