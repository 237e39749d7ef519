// The list of versions in the sidebar. versions.js at the root of the site calls sickbayVersions
// with all of them: as a script and no request for data, so that it works from a folder too.
function sickbayVersions(versions) {
  const place = document.querySelector(".sickbay-version");
  const list = place.querySelector("select");
  const current = place.dataset.version;
  list.replaceChildren(
    ...versions.map((version) => new Option(version, version, false, version === current))
  );
  list.addEventListener("change", () => {
    location.href = `${place.dataset.root}${list.value}/docs/README.html`;
  });
}

document.addEventListener("DOMContentLoaded", () => {
  const place = document.querySelector(".sickbay-version");
  if (place) {
    const script = document.createElement("script");
    script.src = `${place.dataset.root}versions.js`;
    document.head.append(script);
  }
});
