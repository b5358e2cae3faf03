import { defineConfig } from "vite";

// The output is committed as package data: the same source has to give the same bytes.
export default defineConfig({
  base: "/console/",
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  build: {
    outDir: process.env.CONSOLE_OUT ?? "../src/penstock/console/static",
    emptyOutDir: true,
    sourcemap: false,
    assetsInlineLimit: 0,
    modulePreload: false,
    target: "es2022",
  },
});
