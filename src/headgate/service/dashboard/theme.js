// Applies the chosen theme before anything is drawn, so that the page does not flash.
"use strict";
const chosen = localStorage.getItem("headgate.theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
