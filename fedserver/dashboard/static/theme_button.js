// The button that switches between light and dark.
export function themeButton(button, changed) {
  const dark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"}`); };
  button.addEventListener("click", () => {
    const wanted = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = wanted;
    try { localStorage.setItem("fedpvr-theme", wanted); } catch { /* It holds until the page is closed. */ }
    label();
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { label(); changed(); });
  label();
}
