// The recommended rules for the pages' scripts. They are plain scripts that share one scope: tsc knows what each defines.
import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  {
    languageOptions: { ecmaVersion: 2022, sourceType: "script", globals: globals.browser },
    rules: {
      "no-undef": "off",
      "no-unused-vars": ["error", { vars: "local", ignoreRestSiblings: true }],
      "no-redeclare": ["error", { builtinGlobals: false }], // browsers have a Gyroscope of their own
    },
  },
];
