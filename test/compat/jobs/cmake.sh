# program: cmake and ninja
# needs: cmake ninja gcc
# version: cmake --version | head -1
# does: configure, build and ctest of a project
# kind: heavy
# makes: build/app
# differs: \.ninja_(log|deps)$|CMakeConfigureLog|Testing/|\.log$|compiler_depend|CMakeFiles/.*(CompilerId|CMakeOutput|CMakeError)
# varies: Testing/

job() {
	printf 'cmake_minimum_required(VERSION 3.13)\nproject(app C)\nadd_executable(app main.c)\nenable_testing()\nadd_test(NAME t COMMAND app)\n' > CMakeLists.txt
	printf '#include <stdio.h>\nint main(void) { puts("built by ninja"); return 0; }\n' > main.c
	cmake -G Ninja -S . -B build > /dev/null
	cmake --build build > /dev/null
	build/app
	ctest --test-dir build 2>&1 | grep -o '100% tests passed'
}
