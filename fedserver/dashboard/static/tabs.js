// Tabs as the ARIA pattern has them: arrows move, the address remembers.
export function tabs(list, shown) {
  const all = [...list.querySelectorAll("[role=tab]")];
  const show = (tab, focus) => {
    for (const each of all) {
      const on = each === tab;
      each.setAttribute("aria-selected", String(on));
      each.tabIndex = on ? 0 : -1;
      document.getElementById(each.getAttribute("aria-controls")).hidden = !on;
    }
    if (focus) tab.focus();
    tab.scrollIntoView({ block: "nearest", inline: "nearest" });
    shown(tab.getAttribute("aria-controls"));
  };
  const remember = (tab, focus) => { history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`); show(tab, focus); };
  all.forEach((tab, k) => {
    tab.addEventListener("click", () => remember(tab, false));
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: k + 1, ArrowLeft: k - 1, Home: 0, End: all.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      remember(all[(to + all.length) % all.length], true);
    });
  });
  const wanted = () => all.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash) ?? all[0];
  addEventListener("hashchange", () => show(wanted(), false));
  show(wanted(), false);
}
