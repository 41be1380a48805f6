// Before anything is drawn: the theme that was chosen here last, else the system's.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("fedpvr-theme"); } catch { /* A browser may forbid it. */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
